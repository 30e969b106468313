#pragma once
/// How long an epoch takes on devices that are not here, and what bounds it: arithmetic on figures whose sources are
/// named.

#include <absl/status/statusor.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trainkit/distributed/scaling_model.h"

namespace trainkit::tool {

/// What a maker says of a device.
struct GpuSheet {
  std::string name;
  /// Dense matrix products of bfloat16, summed in float32.
  double flops_per_second = 0;
  std::string memory;
  std::string source;
};

const std::vector<GpuSheet>& gpu_sheets();
/// nullptr for a name that is not in the list.
const GpuSheet* find_gpu(const std::string& name);

/// ResNet-50 in half precision trains at 1,776 images/s on one RTX 4090 (batch 256, tf_cnn_benchmarks, published at
/// server-gear.com), with 24.5 G operations an image (forward and backward): 26 % of its sheet's 165.2 T.
inline constexpr double kPublishedEfficiency = 0.26;

struct EpochTimeOptions {
  GpuSheet gpu;
  /// The share of the sheet's operations that a training step reaches.
  double efficiency = kPublishedEfficiency;
  /// Between the devices.
  Link link = {};
  /// Workers of all devices, and the rows that one of them reads (decodes) a second; 0: not known.
  int64_t workers = 12;
  double rows_per_second = 0;
  /// Of rows that were decoded before.
  double read_bytes_per_second = 5e9;
};

/// Seconds of an epoch, each as if it were alone; the parts but the exchange happen at the same time.
struct EpochTime {
  double step_seconds = 0;  ///< One device's computing in a step.
  double computing = 0;     ///< All steps.
  double exchange = 0;      ///< Gradients, as far as backward does not hide them.
  double reading = 0;       ///< Decoded rows from a disk.
  double decoding = 0;      ///< 0: not known.
  double gradient_bytes = 0;

  double devices() const { return computing + exchange; }
  /// With decoded rows: the longer of the devices' time and reading.
  double seconds() const { return devices() > reading ? devices() : reading; }
  /// "computing", "the exchange of gradients" or "reading".
  std::string bound() const;
};

/// From a trainer's plan ("rows", "row_flops", "row_bytes", "batch_size", "grad_accum_steps", "devices",
/// "steps_per_epoch", "weight_bytes").
EpochTime predict_epoch(const nlohmann::ordered_json& plan, const EpochTimeOptions& options);

/// The prediction as lines, each figure with its source, and the `trainkit scale` that says more of the devices.
std::string describe_epoch(const nlohmann::ordered_json& plan, const EpochTimeOptions& options, const EpochTime& time);
nlohmann::ordered_json epoch_json(const EpochTimeOptions& options, const EpochTime& time);

}  // namespace trainkit::tool
