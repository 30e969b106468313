#include "trainkit/train/train_step.h"

#include <ATen/ops/maximum.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "train/step/step_phase.h"
#include "train/step/step_precision.h"
#include "train/update/players.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

const TrainStepOptions& checked(const TrainStepOptions& options, const DeviceReplicator& devices) {
  TORCH_CHECK_VALUE(options.grad_accum_steps >= 1, "grad_accum_steps must be >= 1, got ", options.grad_accum_steps);
  TORCH_CHECK_VALUE(options.grad_clip >= 0, "grad_clip must be >= 0, got ", options.grad_clip);
  TORCH_CHECK_VALUE(options.ema_decay >= 0 && options.ema_decay < 1, "ema_decay must be in [0, 1), got ",
                    options.ema_decay);
  const std::string precision = detail::precision_problem(options.precision, devices);
  TORCH_CHECK_VALUE(precision.empty(), precision);
  return options;
}

/// Returns why the steps of several players cannot be captured; empty if they can.
std::string graph_obstacle(const DeviceReplicator& devices, bool shares) {
  if (shares) return "the players share tensors";
  return devices.world_replicas() > 1 ? "several players train on several devices" : "";
}

/// The same for a function that reads the gradients.
TrainStepOptions without_graphs(TrainStepOptions options, std::string& obstacle) {
  if (options.on_gradients && obstacle.empty()) obstacle = "a function reads the gradients (on_gradients)";
  if (!obstacle.empty()) options.cuda_graph = CudaGraph::kOff;
  return options;
}

TrainStepOptions options_of(const Player& player, TrainStepOptions options) {
  options.grad_clip = player.grad_clip;
  options.ema_decay = player.ema_decay;
  return options;
}

}  // namespace

// Note [Steps of players]
// ~~~~~~~~~~~~~~~~~~~~~~~
// Each player has a StepPhase: the step of one optimizer, with its own snapshot, retries, votes and capture. finish()
// runs those that take part in the step one after another, on batches that it has kept. Before that it computes the
// shared tensors, whose graph the phases keep until the last of them has run; they belong to the step of the first
// player, which restores the buffers from before them if it is skipped. The first player takes part in every step: it
// carries the requests and votes of the whole step. All players split their batches alike, since a checkpoint has one
// number: the ones after a player that ran out of memory follow it in the same step.

class TrainStep::Impl {
 public:
  using Phase = detail::StepPhase;

  Impl(detail::ReplicaStrategy& devices, Optimizer& optimizer, const TrainStepOptions& options, LRScheduler* scheduler)
      : options_(options), devices_(devices), batches_(options.grad_accum_steps) {
    if (devices.phases().are_set()) devices.phases().set({});
    phases_.push_back(std::make_unique<Phase>(devices, optimizer, without_graphs(options, obstacle_), scheduler));
    if (options.on_gradients) {
      TORCH_CHECK_VALUE(!devices.shards(), "on_gradients cannot be used with sharding");
      first().update.set_on_gradients([read = options.on_gradients] { read(""); });
    }
  }

  Impl(detail::ReplicaStrategy& devices, const std::vector<Player>& players, SharedFunction shared,
       const TrainStepOptions& options, const std::vector<LRScheduler*>& schedulers)
      : options_(options),
        devices_(devices),
        batches_(options.grad_accum_steps),
        players_(players),
        shared_(std::move(shared)),
        scaler_(detail::make_scaler(options)),
        obstacle_(graph_obstacle(devices, static_cast<bool>(shared_))) {
    const TrainStepOptions common = without_graphs(options, obstacle_);
    detail::check_player_options(options, obstacle_);
    detail::divide_among_players(devices, players_);
    for (size_t i = 0; i < players_.size(); ++i) {
      const Player& player = players_[i];
      devices_.phases().begin(i, /*keeps_graph=*/false);
      if (schedulers.empty() && player.schedule) {
        own_schedulers_.push_back(std::make_unique<LRScheduler>(*player.optimizer, player.schedule));
      }
      LRScheduler* const scheduler = !schedulers.empty() ? schedulers.at(i)
                                     : player.schedule   ? own_schedulers_.back().get()
                                                         : nullptr;
      phases_.push_back(
          std::make_unique<Phase>(devices, *player.optimizer, options_of(player, common), scheduler, &*scaler_));
      if (options.on_gradients) {
        phases_.back()->update.set_on_gradients([read = options.on_gradients, name = player.name] { read(name); });
      }
    }
  }

  bool has_players() const { return !players_.empty(); }
  Phase& first() const { return *phases_.front(); }
  Phase& phase(size_t player) const { return *phases_.at(player); }
  const std::vector<std::unique_ptr<Phase>>& phases() const { return phases_; }
  GradScaler& scaler() { return scaler_ ? *scaler_ : first().update.scaler(); }
  const TrainStepOptions& options() const { return options_; }
  const std::string& graph_reason() const { return obstacle_.empty() ? first().capture.reason() : obstacle_; }
  int64_t split() const {
    int64_t split = 1;
    for (const auto& phase : phases_) split = std::max(split, phase->batches.split());
    return split;
  }
  void set_split(int64_t split) {
    for (const auto& phase : phases_) phase->batches.set_split(split);
  }
  int64_t accumulated() const { return has_players() ? batches_.count() : first().batches.count(); }

  void accumulate(const Batch& batch) {
    TORCH_CHECK(has_players(), "accumulate(batch) is for several players; pass the loss function");
    batches_.keep(batch, /*place=*/static_cast<size_t>(step_ % 2));
    batches_.add(nullptr, nullptr);
  }

  /// The only phase, whose caller passes the loss.
  Phase& single() const {
    TORCH_CHECK(!has_players(), "each player has its loss function: pass the batch alone");
    return first();
  }

  StepMetrics finish() {
    if (!has_players()) return first().finish();
    TORCH_CHECK(batches_.count() > 0, "finish() needs at least one accumulate() before it");
    try {
      StepMetrics metrics = run_players();
      ++step_;
      end();
      return metrics;
    } catch (...) {
      end();
      throw;
    }
  }

  void average_over_ranks(StepMetrics& metrics) {
    if (!has_players()) return first().sums.average_over_ranks(metrics);
    for (const size_t player : taking_part_) phase(player).sums.average_over_ranks(results_[player]);
    metrics = merged();
  }

  void set_step(int64_t step) {
    step_ = step;
    for (const auto& phase : phases_) phase->set_step(step);
  }

  StepTimes times() const {
    StepTimes sum;
    for (const auto& phase : phases_) {
      const StepTimes times = phase->times();
      sum.copy_seconds += times.copy_seconds;
      sum.reduce_seconds += times.reduce_seconds;
      sum.update_seconds += times.update_seconds;
    }
    return sum;
  }

 private:
  StepMetrics run_players() {
    taking_part_.clear();
    for (size_t i = 0; i < players_.size(); ++i) {
      if ((step_ + 1) % players_[i].every == 0) taking_part_.push_back(i);
    }
    for (const size_t i : taking_part_) {
      phases_[i]->skip_to(step_);
      phases_[i]->follow_step();
    }
    const bool keeps_graph = compute_shared();
    results_.assign(players_.size(), {});
    bool used_scaler = false;
    for (const size_t i : taking_part_) {
      Phase& phase = *phases_[i];
      devices_.phases().begin(i, keeps_graph && i != taking_part_.back());
      phase.batches.set_split(split());
      for (int64_t b = 0; b < batches_.count(); ++b) {
        phase.accept_kept(batches_.at(b).batch, players_[i].loss,
                          shared_ ? &shared_of_batch_[static_cast<size_t>(b)] : nullptr);
      }
      results_[i] = phase.finish();
      used_scaler |= phase.update.take_scaler_use();
    }
    set_split(split());
    if (used_scaler) first().memory.run([&] { scaler_->update(); });
    return merged();
  }

  /// Returns whether a shared tensor has a graph.
  bool compute_shared() {
    if (!shared_) return false;
    if (options_.skip_nonfinite) first().begin_shared();
    devices_.phases().begin(taking_part_.front(), /*keeps_graph=*/false);
    devices_.begin_step();
    bool has_graph = false;
    for (int64_t b = 0; b < batches_.count(); ++b) {
      shared_of_batch_.push_back(first().losses.share(batches_.at(b).batch, shared_));
      for (const Shared& of_replica : shared_of_batch_.back()) {
        for (const auto& [name, tensor] : of_replica) {
          const bool requires_grad = tensor.defined() && tensor.requires_grad();
          if (requires_grad && options_.grad_accum_steps > 1) detail::throw_kept_graph(name);
          has_graph |= requires_grad;
        }
      }
    }
    return has_graph;
  }

  /// The results of the players in the step that has ended, as those of one.
  StepMetrics merged() const {
    StepMetrics all = results_.front();
    all.metrics.clear();
    all.metric_weights.clear();
    for (const size_t i : taking_part_) {
      const StepMetrics& own = results_[i];
      const std::string prefix = players_[i].name + ".";
      const auto add = [&](const std::string& name, const at::Tensor& value, double weight) {
        all.metrics.emplace_back(prefix + name, value);
        all.metric_weights.push_back(weight);
      };
      add("loss", own.loss, own.weight);
      if (own.grad_norm.defined()) add("grad_norm", own.grad_norm, own.weight);
      for (size_t m = 0; m < own.metrics.size(); ++m) {
        add(own.metrics[m].first, own.metrics[m].second,
            m < own.metric_weights.size() ? own.metric_weights[m] : own.weight);
      }
      if (i == 0) continue;
      if (own.skipped_in_a_row.defined()) {
        all.skipped_in_a_row = all.skipped_in_a_row.defined() ? at::maximum(all.skipped_in_a_row, own.skipped_in_a_row)
                                                              : own.skipped_in_a_row;
      }
      if (all.first_nonfinite.empty()) all.first_nonfinite = own.first_nonfinite;
    }
    return all;
  }

  void end() {
    shared_of_batch_.clear();
    batches_.clear();
  }

  const TrainStepOptions options_;
  detail::ReplicaStrategy& devices_;
  detail::StepBatches batches_;  // of players
  std::vector<Player> players_;  // empty: one phase, whose caller passes the loss
  SharedFunction shared_;
  std::optional<GradScaler> scaler_;  // of all players
  std::string obstacle_;
  std::vector<std::unique_ptr<LRScheduler>> own_schedulers_;
  std::vector<std::unique_ptr<Phase>> phases_;
  std::vector<size_t> taking_part_;  // players in the current step, or the last one
  std::vector<StepMetrics> results_;
  std::vector<std::vector<Shared>> shared_of_batch_;  // by micro-batch and replica
  int64_t step_ = 0;
};

TrainStep::TrainStep(DeviceReplicator& devices, Optimizer& optimizer, const TrainStepOptions& options,
                     LRScheduler* scheduler)
    : impl_(std::make_unique<Impl>(detail::strategy_of(devices), optimizer, checked(options, devices), scheduler)) {}
TrainStep::TrainStep(DeviceReplicator& devices, const std::vector<Player>& players, SharedFunction shared,
                     const TrainStepOptions& options, const std::vector<LRScheduler*>& schedulers)
    : impl_(std::make_unique<Impl>(detail::strategy_of(devices), players, std::move(shared), checked(options, devices),
                                   schedulers)) {}
TrainStep::~TrainStep() = default;

void TrainStep::accumulate(const Batch& batch, const LossFunction& loss) {
  impl_->single().accept(batch, &loss, nullptr);
}
void TrainStep::accumulate(const Batch& batch, LossFunction&& loss) {
  impl_->single().accept(batch, nullptr, std::move(loss));
}
void TrainStep::accumulate(const Batch& batch) { impl_->accumulate(batch); }
StepMetrics TrainStep::finish() { return impl_->finish(); }
void TrainStep::average_over_ranks(StepMetrics& metrics) { impl_->average_over_ranks(metrics); }

void TrainStep::request_stop(int signal) { impl_->first().agreement->request_stop(signal); }
void TrainStep::request_save() { impl_->first().agreement->request_save(); }
int TrainStep::agreed_stop() const { return impl_->first().agreement->verdict().stop; }
bool TrainStep::agreed_save() const { return impl_->first().agreement->verdict().save; }
void TrainStep::confirm() {
  for (const auto& phase : impl_->phases()) phase->agreement->confirm();
}

void TrainStep::synchronize() {
  for (const auto& phase : impl_->phases()) phase->update.copies().synchronize();
}
NamedTensors TrainStep::averages(int64_t copy) const {
  NamedTensors averages;
  for (const auto& phase : impl_->phases()) {
    for (auto& average : phase->update.copies().averages(copy)) averages.push_back(std::move(average));
  }
  return averages;
}
const std::vector<Optimizer*>& TrainStep::optimizers(size_t player) const {
  return impl_->phase(player).update.copies().all();
}
void TrainStep::swap_averages() {
  for (const auto& phase : impl_->phases()) phase->update.copies().swap_averages();
}
GradScaler& TrainStep::scaler() const { return impl_->scaler(); }

void TrainStep::set_step(int64_t step) { impl_->set_step(step); }
double TrainStep::weight_unit(size_t player) const { return impl_->phase(player).weights.unit(); }
void TrainStep::set_weight_unit(double unit, size_t player) { impl_->phase(player).weights.set_unit(unit); }
int64_t TrainStep::split() const { return impl_->split(); }
void TrainStep::set_split(int64_t split) { impl_->set_split(split); }
int64_t TrainStep::accumulated() const { return impl_->accumulated(); }
const TrainStepOptions& TrainStep::options() const { return impl_->options(); }

const std::string& TrainStep::graph_reason() const { return impl_->graph_reason(); }
bool TrainStep::uses_graphs() const { return impl_->first().capture.is_active(); }
int64_t TrainStep::graph_steps() const {
  return impl_->first().capture.graphs() ? impl_->first().capture.graphs()->steps() : 0;
}
int64_t TrainStep::graph_captures() const {
  int64_t captures = 0;
  for (const auto& phase : impl_->phases()) {
    if (phase->capture.graphs()) captures += phase->capture.graphs()->captures();
  }
  return captures;
}
bool TrainStep::drop_graphs(const std::string& reason) {
  bool any = false;
  for (const auto& phase : impl_->phases()) any |= phase->memory.drop_graphs(reason);
  return any;
}

StepTimes TrainStep::times() const { return impl_->times(); }

}  // namespace trainkit
