#include "train/run/fit_context.h"

#include <algorithm>
#include <utility>

#include "train/divided/sharded_copies.h"

namespace trainkit {
namespace {

std::unique_ptr<LRScheduler> make_scheduler(Optimizer& optimizer, const TrainerOptions& options) {
  if (!options.schedule && !options.plateau) return nullptr;
  auto schedule = options.schedule ? options.schedule : constant_lr();
  std::optional<PlateauOptions> plateau = options.plateau;
  if (plateau) plateau->maximize = options.monitor_higher_is_better;
  return std::make_unique<LRScheduler>(optimizer, std::move(schedule), plateau);
}

}  // namespace

TrainStepOptions step_options(const TrainerOptions& options) {
  return {.precision = options.precision,
          .grad_accum_steps = options.grad_accum_steps,
          .grad_clip = options.grad_clip,
          .skip_nonfinite = options.on_nonfinite != OnNonfinite::kFail || options.grad_clip > 0,
          .scaler = options.scaler,
          .ema_decay = options.ema_decay,
          .cuda_graph = options.cuda_graph,
          .release_memory = options.release_memory};
}

CheckpointOptions checkpoint_options(const TrainerOptions& options) {
  return {.keep_last = static_cast<int>(options.keep_last), .keep_every = options.keep_every};
}

namespace {

std::vector<std::unique_ptr<LRScheduler>> make_schedulers(const Trained& trained, const TrainerOptions& options) {
  std::vector<std::unique_ptr<LRScheduler>> schedulers;
  if (trained.players.empty()) schedulers.push_back(make_scheduler(trained.optimizer, options));
  for (const Player& player : trained.players) {
    schedulers.push_back(player.schedule ? std::make_unique<LRScheduler>(*player.optimizer, player.schedule) : nullptr);
  }
  return schedulers;
}

TrainStep make_step(detail::ReplicaStrategy& devices, const Trained& trained, const TrainerOptions& options,
                    const std::vector<std::unique_ptr<LRScheduler>>& schedulers) {
  TrainStepOptions own = step_options(options);
  own.on_gradients = trained.on_gradients;
  if (trained.players.empty()) return TrainStep(devices, trained.optimizer, own, schedulers.front().get());
  std::vector<LRScheduler*> all;
  for (const auto& scheduler : schedulers) all.push_back(scheduler.get());
  return TrainStep(devices, trained.players, trained.shared, own, all);
}

std::vector<RunParts::Player> players_of(const Trained& trained,
                                         const std::vector<std::unique_ptr<LRScheduler>>& schedulers) {
  if (trained.players.empty()) return {{.optimizer = trained.optimizer, .scheduler = schedulers.front().get()}};
  std::vector<RunParts::Player> players;
  for (size_t i = 0; i < trained.players.size(); ++i) {
    const Player& player = trained.players[i];
    players.push_back({.optimizer = *player.optimizer, .scheduler = schedulers[i].get(), .name = player.name});
  }
  return players;
}

}  // namespace

FitContext::FitContext(detail::ReplicaStrategy& devices, const Trained& trained, const TrainerOptions& options,
                       BatchSource* source, const std::vector<NamedState>& others)
    : devices(devices),
      optimizer(trained.optimizer),
      options(options),
      group(devices.process_group()),
      source(source, devices.process_group()),
      others(others),
      schedulers(make_schedulers(trained, options)),
      step(make_step(devices, trained, options, schedulers)),
      players(players_of(trained, schedulers)) {}

bool FitContext::is_due(const Interval& interval) const {
  if (interval.steps() > 0) return progress.step % interval.steps() == 0;
  const int64_t epoch = source.ended_epoch();
  return interval.epochs() > 0 && epoch > 0 && epoch % interval.epochs() == 0;
}

RunParts FitContext::parts() {
  return {.devices = devices,
          .players = players,
          .scaler = step.scaler(),
          .source = source.source(),
          .others = others,
          .seed = source.seed(),
          .averages = step.averages(),
          .copies = detail::sharded_copies(devices, step)};
}

RunShape FitContext::shape() const {
  const int64_t micro_batch = source.fixed_batch_size() * ranks();
  return {.global_batch_size = micro_batch * options.grad_accum_steps, .replicas = devices.world_replicas()};
}

void FitContext::reserve_schedule() {
  constexpr int64_t kLongest = 1 << 20;
  const int64_t steps = planned_steps(source.batches_per_epoch(), options);
  for (const RunParts::Player& player : players) {
    if (player.scheduler) player.scheduler->reserve(std::min(steps + 2, kLongest));
  }
}

}  // namespace trainkit
