#pragma once
/// A step measured by a run that was made on one device.

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>

namespace trainkit::tool {

struct MeasuredStep {
  double seconds = 0;
  int64_t gradient_bytes = 0;
  int64_t micro_steps = 1;
};

/// Reads a run's folder: seconds are the rows of an optimizer step (batch_size x grad_accum_steps, or
/// global_batch_size, of config.yaml) over the median `samples_per_second` of the second half of metrics.jsonl;
/// gradient bytes are those of the parameters in the last checkpoint. Exit code 2, naming what is missing.
absl::StatusOr<MeasuredStep> read_measured_step(const std::string& output_dir);

}  // namespace trainkit::tool
