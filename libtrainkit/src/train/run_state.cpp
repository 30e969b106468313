#include "run_state.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <utility>
#include <variant>

#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/train/rng_state.h"
#include "trainkit/train/weights.h"

namespace trainkit {
namespace {

StateDict progress_state(const RunProgress& progress) {
  StateDict state = {
      {"step", progress.step}, {"bad_evaluations", progress.bad_evaluations}, {"best_step", progress.best_step}};
  for (const auto& [name, value] : progress.best) state["best." + name] = value;
  return state;
}

absl::StatusOr<RunProgress> load_progress(const StateDict& state) {
  RunProgress progress;
  TRAINKIT_ASSIGN_OR_RETURN(progress.step, get_state<int64_t>(state, "step"));
  TRAINKIT_ASSIGN_OR_RETURN(progress.bad_evaluations, get_state<int64_t>(state, "bad_evaluations"));
  TRAINKIT_ASSIGN_OR_RETURN(progress.best_step, get_state<int64_t>(state, "best_step"));
  for (const auto& [name, value] : sub_state(state, "best")) {
    if (const double* number = std::get_if<double>(&value)) progress.best[name] = *number;
  }
  return progress;
}

}  // namespace

absl::Status save_run(CheckpointStore& store, const RunParts& parts, const RunProgress& progress,
                      const StateDict& config) {
  CheckpointContents contents;
  contents.model = named_tensors(*parts.devices.module());
  // Tensors of the optimizer have a file of their own; its scalars stand with the rest of the state.
  for (auto& [name, value] : parts.optimizer.state_dict()) {
    if (const at::Tensor* tensor = std::get_if<at::Tensor>(&value)) {
      contents.optimizer.emplace_back(name, *tensor);
    } else {
      contents.state["optimizer." + name] = value;
    }
  }
  if (parts.scheduler) merge_state(contents.state, "scheduler", parts.scheduler->state_dict());
  merge_state(contents.state, "scaler", parts.scaler.state_dict());
  merge_state(contents.state, "loader", parts.loader.state_dict());
  merge_state(contents.state, "rng", default_generator_state());
  merge_state(contents.state, "trainer", progress_state(progress));
  merge_state(contents.state, "config", config);
  return store.save(progress.step, contents);
}

absl::Status resume_run(const std::string& spec, const std::string& output_dir, const RunParts& parts,
                        RunProgress& progress) {
  TRAINKIT_ASSIGN_OR_RETURN(const CheckpointPath found, resolve_checkpoint(spec, output_dir));
  TRAINKIT_ASSIGN_OR_RETURN(const CheckpointContents contents, load_checkpoint(found));
  StateDict optimizer = sub_state(contents.state, "optimizer");
  for (const auto& [name, tensor] : contents.optimizer) optimizer[name] = tensor;

  TRAINKIT_ASSIGN_OR_RETURN(RunProgress loaded, load_progress(sub_state(contents.state, "trainer")));
  TRAINKIT_RETURN_IF_ERROR(
      load_named_tensors(*parts.devices.module(), contents.model, found.path() + "/model.safetensors"));
  TRAINKIT_RETURN_IF_ERROR(parts.optimizer.load_state_dict(optimizer));
  if (parts.scheduler) {
    TRAINKIT_RETURN_IF_ERROR(parts.scheduler->load_state_dict(sub_state(contents.state, "scheduler")));
  }
  TRAINKIT_RETURN_IF_ERROR(parts.scaler.load_state_dict(sub_state(contents.state, "scaler")));
  TRAINKIT_RETURN_IF_ERROR(parts.loader.load_state_dict(sub_state(contents.state, "loader")));
  TRAINKIT_RETURN_IF_ERROR(load_default_generator_state(sub_state(contents.state, "rng")));
  progress = std::move(loaded);
  return absl::OkStatus();
}

std::vector<int64_t> device_memory_bytes(const DeviceReplicator& devices) {
  std::vector<int64_t> bytes;
  for (int64_t replica = 0; replica < devices.replicas(); ++replica) {
    const at::Device device = devices.device(replica);
    if (device.is_cpu()) continue;
    const auto stats =
        at::getDeviceAllocator(device.type())->getDeviceStats(std::max<c10::DeviceIndex>(device.index(), 0));
    bytes.push_back(stats.allocated_bytes[0].current);
  }
  return bytes;
}

}  // namespace trainkit
