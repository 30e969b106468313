#pragma once
/// Counts the floating-point operations of a training step on the CPU, before the run.

#include <absl/status/statusor.h>

#include <cstdint>

#include "trainkit/train/step_memory.h"

namespace trainkit {

namespace detail {
/// The operation that marks the begin of a recording for observers.
inline constexpr char kRecording[] = "trainkit::recording";
}  // namespace detail

/// Counts the floating-point operations of forward and backward of one micro-batch of `batch_size` rows. As in data
/// sheets, a multiply-add counts as two. Counts convolutions and matrix products, from the shapes that LibTorch's
/// operators receive. Norms, activations and the optimizer are not counted, since memory bandwidth limits them. Runs
/// float32 steps and frees everything afterwards. Errors: those of record_step_memory.
absl::StatusOr<double> count_step_flops(const StepRecipe& recipe, int64_t batch_size);

}  // namespace trainkit
