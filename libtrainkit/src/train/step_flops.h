#pragma once
/// The arithmetic of a training step, counted on the CPU before there is a run.

#include <absl/status/statusor.h>

#include <cstdint>

#include "trainkit/train/step_memory.h"

namespace trainkit {

/// Floating-point operations of forward and backward of one micro-batch of `batch_size` rows: two for each
/// multiply-add of convolutions and matrix products, as data sheets count them, from the shapes that LibTorch's
/// operators get. Everything else (norms, activations, the optimizer) is not counted: it is bound by memory. Takes one
/// step in float32; leaves nothing behind. Errors: those of record_step_memory.
absl::StatusOr<double> count_step_flops(const StepRecipe& recipe, int64_t batch_size);

}  // namespace trainkit
