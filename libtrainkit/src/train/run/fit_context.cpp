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

FitContext::FitContext(detail::ReplicaStrategy& devices, Optimizer& optimizer, const TrainerOptions& options,
                       Prefetcher& loader)
    : devices(devices),
      optimizer(optimizer),
      options(options),
      loader(loader),
      group(devices.process_group()),
      scheduler(make_scheduler(optimizer, options)),
      step(devices, optimizer, step_options(options), scheduler.get()) {}

double FitContext::epochs() const {
  return static_cast<double>(loader.epoch()) +
         static_cast<double>(loader.position()) / static_cast<double>(loader.batches_per_epoch());
}

RunParts FitContext::parts() {
  return {devices,
          optimizer,
          scheduler.get(),
          step.scaler(),
          loader,
          step.averages(),
          detail::sharded_copies(devices, step)};
}

RunShape FitContext::shape() const {
  const int64_t micro_batch = loader.options().batch_size * ranks();
  return {.global_batch_size = micro_batch * options.grad_accum_steps, .replicas = devices.world_replicas()};
}

void FitContext::reserve_schedule() {
  constexpr int64_t kLongest = 1 << 20;
  const int64_t steps = planned_steps(loader.batches_per_epoch(), options);
  if (scheduler) scheduler->reserve(std::min(steps + 2, kLongest));
}

}  // namespace trainkit
