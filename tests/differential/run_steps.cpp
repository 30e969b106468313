// A hand-written loop of TrainStep.
#include <c10/util/Exception.h>
#include <torch/torch.h>

#include <atomic>

#include "model.h"
#include "run.h"
#include "trainkit/optim/lr_scheduler.h"
#include "trainkit/train/checkpoint.h"
#include "trainkit/train/evaluate.h"
#include "trainkit/train/train_step.h"
#include "trainkit/train/weights.h"

namespace trainkit::differential {
namespace {

/// All objects of a program.
class Steps {
 public:
  Steps(const Spec& spec, const Setup& setup)
      : spec_(spec),
        setup_(setup),
        ranks_(setup.group ? setup.group->world_size() : 1),
        rank_(setup.group ? setup.group->rank() : 0),
        loss_(make_loss(spec, &kept_, [this](torch::nn::Module&, const Batch&) { on_call(); })) {
    Spec second = spec;
    second.factor = -0.5;
    second_loss_ = make_loss(second);
    make();
  }

  Record operator()() {
    for (int64_t fit = 0; fit < spec_.fits; ++fit) {
      if (fit > 0) make_step();
      for (int64_t i = 0; i < spec_.steps; ++i) {
        ++step_number_;
        take_step();
        if (step_number_ == setup_.resume_at) resume();
      }
      if (fit + 1 < spec_.fits) step_->swap_averages();
    }
    for (size_t i = 0; i < kept_.size(); ++i) put(record_, "kept/" + std::to_string(i), kept_[i]);
    return std::move(record_);
  }

 private:
  void make() {
    devices_ = make_devices(spec_, setup_);
    const int64_t halves = spec_.two_steps ? 2 : 1;
    if (has_players()) {
      players_ = make_players(spec_, *devices_, &kept_, [this](torch::nn::Module&, const Batch&) { on_call(); });
    } else {
      optimizer_ = make_optimizer(spec_, *devices_, 0, halves);
    }
    optimizers_ = {optimizer_.get()};
    if (has_players()) optimizers_.clear();
    for (const Player& player : players_) optimizers_.push_back(player.optimizer.get());
    if (spec_.two_steps) second_optimizer_ = make_optimizer(spec_, *devices_, 1, halves);
    loader_ = make_loader(spec_, spec_.batch_size / ranks_ / setup_.micro_batches, rank_, ranks_);
    validation_ = make_validation(spec_, rank_, ranks_);
    make_step();
  }

  bool has_players() const { return !spec_.players.empty(); }

  void make_step() {
    TrainStepOptions options{.precision = spec_.dtype == "bfloat16" ? Precision::kBf16 : Precision::kFp32,
                             .grad_accum_steps = spec_.accumulate * setup_.micro_batches,
                             .grad_clip = has_players() ? 0 : spec_.clip,
                             .zero_grad_set_to_none = !spec_.keep_grads,
                             .skip_nonfinite = spec_.skip_nonfinite,
                             .ema_decay = has_players() ? 0 : spec_.ema};
    if (spec_.events) {
      options.on_gradients = [this](std::string_view player) { put_gradients(record_, place_, player, optimizers_); };
    }
    step_.reset();
    schedulers_.clear();
    // An optimizer gets its groups from the step, which the scheduler does not need. Without a resume the step makes
    // the schedulers of players.
    std::vector<LRScheduler*> schedulers;
    for (size_t i = 0; i < optimizers_.size() && !(has_players() && setup_.resume_at == 0); ++i) {
      std::shared_ptr<const LRSchedule> schedule = make_schedule(of_player(spec_, static_cast<int64_t>(i)));
      schedulers_.push_back(schedule ? std::make_unique<LRScheduler>(*optimizers_[i], schedule) : nullptr);
      schedulers.push_back(schedulers_.back().get());
    }
    if (has_players()) {
      step_ = std::make_unique<TrainStep>(*devices_, players_, make_shared_of(spec_, setup_), options, schedulers);
    } else {
      step_ = std::make_unique<TrainStep>(*devices_, *optimizer_, options, schedulers.front());
    }
    step_->set_step(step_number_);
    if (spec_.two_steps) second_step_ = std::make_unique<TrainStep>(*devices_, *second_optimizer_, options);
  }

  /// Called before the loss function in training, on the thread of a replica.
  void on_call() {
    if (step_number_ != setup_.fail_at || failed_.exchange(true)) return;
    C10_THROW_ERROR(OutOfMemoryError, "out of memory, as planted");
  }

  Batch next() {
    for (;;) {
      if (auto batch = loader_->next().value()) return *batch;
    }
  }

  void take_step() {
    change_model(spec_, step_number_, *devices_, optimizers_);
    if (setup_.split_from > 0 && step_number_ >= setup_.split_from) step_->set_split(2);
    const std::string place = place_ = "step" + std::to_string(step_number_) + "/";
    for (const Optimizer* optimizer : optimizers_) put_rates(record_, place + "lr/", *optimizer);
    for (int64_t i = 0; i < spec_.accumulate * setup_.micro_batches; ++i) {
      if (i > 0 && loader_->at_epoch_end()) break;
      const Batch batch = next();
      if (spec_.stray_backward && i == 0) stray_backward(batch);
      has_players() ? step_->accumulate(batch) : step_->accumulate(batch, loss_);
      if (spec_.two_steps) second_batch_ = batch;
    }
    put_metrics(place, *step_);
    if (spec_.two_steps) {
      second_step_->accumulate(second_batch_, second_loss_);
      second_batch_ = Batch();
      put_metrics(place + "second/", *second_step_);
      put_state(record_, place + "second/", *devices_, {second_optimizer_.get()});
    }
    put_position(place);
    put_state(record_, place, *devices_, optimizers_);
    if (setup_.sharding == Sharding::kNone) {
      for (const auto& [name, tensor] : step_->averages()) put(record_, place + "average/" + name, tensor);
    }
    if (spec_.evaluate_every > 0 && step_number_ % spec_.evaluate_every == 0) evaluate_model(place);
  }

  void put_metrics(const std::string& place, TrainStep& step) {
    StepMetrics metrics = step.finish();
    step.average_over_ranks(metrics);
    put(record_, place + "loss", metrics.loss);
    for (const auto& [name, value] : metrics.metrics) {
      if (metrics.world_weight > 0) put(record_, place + "metric/" + name, value);
    }
    if (metrics.grad_norm.defined()) put(record_, place + "grad_norm", metrics.grad_norm);
    if (metrics.skipped_in_a_row.defined()) put(record_, place + "skipped", metrics.skipped_in_a_row);
    put(record_, place + "weight", metrics.world_weight);
  }

  void put_position(const std::string& place) {
    const StateDict state = loader_->state_dict();
    put(record_, place + "epoch", static_cast<double>(get_state<int64_t>(state, "epoch").value()));
    // With drop_last the end of an epoch has another number on each side.
    const int64_t rows = get_state<int64_t>(state, "rows").value();
    put(record_, place + "rows", static_cast<double>(loader_->at_epoch_end() ? -1 : rows));
  }

  void evaluate_model(const std::string& place) {
    step_->swap_averages();
    const Metrics metrics = evaluate(*devices_, *validation_, loss_, step_->options().precision).value();
    step_->swap_averages();
    for (const auto& [name, value] : metrics) put(record_, place + "evaluation/" + name, value);
  }

  /// Leaves gradients in the parameters, as a user's own backward does.
  void stray_backward(const Batch& batch) {
    devices_->module()->as<Net>()->forward(batch["x"], batch["m"]).square().sum().backward();
  }

  /// Makes all objects anew and loads their state, as a program that starts again.
  void resume() {
    StateDict state;
    std::vector<double> units;
    for (size_t i = 0; i < optimizers_.size(); ++i) {
      merge_state(state, "optimizer" + std::to_string(i), optimizers_[i]->state_dict());
      if (schedulers_[i]) merge_state(state, "scheduler" + std::to_string(i), schedulers_[i]->state_dict());
      units.push_back(step_->weight_unit(i));
    }
    merge_state(state, "loader", loader_->state_dict());
    merge_state(state, "random", default_generator_state());
    const NamedTensors averages = step_->averages();
    const CheckpointContents saved =
        snapshot({.model = named_tensors(*devices_->module()), .optimizer = averages, .state = state});
    const int64_t split = step_->split();
    step_.reset();
    make();
    for (int64_t step = 1; step <= step_number_; ++step) change_model(spec_, step, *devices_, optimizers_);
    make_step();  // with the averages of groups that were added
    const auto check = [](const absl::Status& status) {
      if (!status.ok()) throw absl::BadStatusOrAccess(status);
    };
    check(load_named_tensors(*devices_->module(), saved.model));
    for (size_t i = 0; i < optimizers_.size(); ++i) {
      check(optimizers_[i]->load_state_dict(sub_state(saved.state, "optimizer" + std::to_string(i))));
      if (schedulers_[i]) {
        check(schedulers_[i]->load_state_dict(sub_state(saved.state, "scheduler" + std::to_string(i))));
      }
      step_->set_weight_unit(units[i], i);
    }
    check(loader_->load_state_dict(sub_state(saved.state, "loader")));
    check(load_default_generator_state(sub_state(saved.state, "random")));
    if (!averages.empty()) check(copy_named_tensors(saved.optimizer, step_->averages(), ""));
    step_->set_split(split);
    step_->synchronize();
  }

  const Spec& spec_;
  const Setup& setup_;
  const int64_t ranks_, rank_;
  std::vector<at::Tensor> kept_;
  LossFunction loss_, second_loss_;
  std::unique_ptr<DeviceReplicator> devices_;
  std::unique_ptr<Prefetcher> loader_, validation_;
  std::unique_ptr<Optimizer> optimizer_, second_optimizer_;
  std::vector<Player> players_;
  Optimizers optimizers_;  // by player
  std::vector<std::unique_ptr<LRScheduler>> schedulers_;
  std::unique_ptr<TrainStep> step_, second_step_;
  Batch second_batch_;
  Record record_;
  std::string place_;  // of the current step
  int64_t step_number_ = 0;
  std::atomic<bool> failed_ = false;
};

}  // namespace

Record run_steps(const Spec& spec, const Setup& setup) {
  torch::manual_seed(spec.seed + static_cast<uint64_t>(spec.number));
  return Steps(spec, setup)();
}

}  // namespace trainkit::differential
