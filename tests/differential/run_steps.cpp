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
        loss_(make_loss(spec, &kept_, [this](torch::nn::Module&, const Batch&) { on_call(); })),
        second_loss_(make_loss(spec, nullptr, nullptr, -0.5)) {
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
      if (fit + 1 < spec_.fits && step_->options().ema_decay > 0) step_->swap_averages();
    }
    for (size_t i = 0; i < kept_.size(); ++i) put(record_, "kept/" + std::to_string(i), kept_[i]);
    return std::move(record_);
  }

 private:
  void make() {
    devices_ = make_devices(spec_, setup_);
    const int64_t halves = spec_.two_steps ? 2 : 1;
    optimizer_ = make_optimizer(spec_, *devices_, 0, halves);
    if (spec_.two_steps) second_optimizer_ = make_optimizer(spec_, *devices_, 1, halves);
    loader_ = make_loader(spec_, spec_.batch_size / ranks_ / setup_.micro_batches, rank_, ranks_);
    validation_ = make_validation(spec_, rank_, ranks_);
    make_step();
  }

  void make_step() {
    const TrainStepOptions options{.precision = spec_.dtype == "bfloat16" ? Precision::kBf16 : Precision::kFp32,
                                   .grad_accum_steps = spec_.accumulate * setup_.micro_batches,
                                   .grad_clip = spec_.clip,
                                   .zero_grad_set_to_none = !spec_.keep_grads,
                                   .skip_nonfinite = spec_.skip_nonfinite,
                                   .ema_decay = spec_.ema};
    step_.reset();
    scheduler_.reset();
    // An optimizer gets its groups from the step, which the scheduler does not need.
    std::shared_ptr<const LRSchedule> schedule = make_schedule(spec_);
    if (schedule) scheduler_ = std::make_unique<LRScheduler>(*optimizer_, schedule);
    step_ = std::make_unique<TrainStep>(*devices_, *optimizer_, options, scheduler_.get());
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
    change_model(spec_, step_number_, *devices_, *optimizer_);
    if (setup_.split_from > 0 && step_number_ >= setup_.split_from) step_->set_split(2);
    const std::string place = "step" + std::to_string(step_number_) + "/";
    const std::vector<double> rates = optimizer_->group_lrs();
    for (size_t i = 0; i < rates.size(); ++i) {
      for (const NamedParameter& parameter : optimizer_->param_groups()[i].params) {
        put(record_, place + "lr/" + parameter.name, rates[i]);
      }
    }
    for (int64_t i = 0; i < spec_.accumulate * setup_.micro_batches; ++i) {
      if (i > 0 && loader_->at_epoch_end()) break;
      const Batch batch = next();
      if (spec_.stray_backward && i == 0) stray_backward(batch);
      step_->accumulate(batch, loss_);
      if (spec_.two_steps) second_batch_ = batch;
    }
    put_metrics(place, *step_);
    if (spec_.two_steps) {
      second_step_->accumulate(second_batch_, second_loss_);
      second_batch_ = Batch();
      put_metrics(place + "second/", *second_step_);
      put_state(record_, place + "second/", *devices_, *second_optimizer_);
    }
    put_position(place);
    put_state(record_, place, *devices_, *optimizer_);
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
    merge_state(state, "optimizer", optimizer_->state_dict());
    if (scheduler_) merge_state(state, "scheduler", scheduler_->state_dict());
    merge_state(state, "loader", loader_->state_dict());
    merge_state(state, "random", default_generator_state());
    const CheckpointContents saved =
        snapshot({.model = named_tensors(*devices_->module()), .optimizer = step_->averages(), .state = state});
    const double unit = step_->weight_unit();
    const int64_t split = step_->split();
    step_.reset();
    make();
    for (int64_t step = 1; step <= step_number_; ++step) change_model(spec_, step, *devices_, *optimizer_);
    make_step();  // with the averages of groups that were added
    const auto check = [](const absl::Status& status) {
      if (!status.ok()) throw absl::BadStatusOrAccess(status);
    };
    check(load_named_tensors(*devices_->module(), saved.model));
    check(optimizer_->load_state_dict(sub_state(saved.state, "optimizer")));
    if (scheduler_) check(scheduler_->load_state_dict(sub_state(saved.state, "scheduler")));
    check(loader_->load_state_dict(sub_state(saved.state, "loader")));
    check(load_default_generator_state(sub_state(saved.state, "random")));
    if (spec_.ema > 0) check(copy_named_tensors(saved.optimizer, step_->averages(), ""));
    step_->set_weight_unit(unit);
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
  std::unique_ptr<LRScheduler> scheduler_;
  std::unique_ptr<TrainStep> step_, second_step_;
  Batch second_batch_;
  Record record_;
  int64_t step_number_ = 0;
  std::atomic<bool> failed_ = false;
};

}  // namespace

Record run_steps(const Spec& spec, const Setup& setup) {
  torch::manual_seed(spec.seed + static_cast<uint64_t>(spec.number));
  return Steps(spec, setup)();
}

}  // namespace trainkit::differential
