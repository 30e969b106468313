#pragma once
/// Reads the measured time of a training step from a run on one device.

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>

namespace trainkit::tool {

/// A measured optimizer step.
struct MeasuredStep {
  double seconds = 0;
  int64_t gradient_bytes = 0;
  /// Micro-batches per optimizer step (gradient accumulation).
  int64_t micro_steps = 1;
};

/// Reads a run's output folder.
///
/// `seconds` = rows per optimizer step / median `samples_per_second` of the second half of metrics.jsonl. Rows per step
/// come from config.yaml: global_batch_size, or batch_size x grad_accum_steps. `gradient_bytes` is the size of all
/// tensors of model.safetensors in the last checkpoint. Errors have exit code 2 and name the missing file or value.
absl::StatusOr<MeasuredStep> read_measured_step(const std::string& output_dir);

}  // namespace trainkit::tool
