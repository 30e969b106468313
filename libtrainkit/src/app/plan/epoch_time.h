#pragma once
/// Predicts the time of an epoch on devices that this machine does not have, and its bottleneck. The prediction is
/// arithmetic on published or given figures; each names its source.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trainkit/app/memory_plan.h"
#include "trainkit/app/plan.h"
#include "trainkit/distributed/scaling.h"

namespace trainkit::detail {

/// Data-sheet figures of a device.
struct GpuSheet {
  std::string name;
  /// Peak of dense bfloat16 matrix products with float32 accumulation.
  double flops_per_second = 0;
  std::string memory;
  std::string source;
};

/// Returns the known devices.
const std::vector<GpuSheet>& gpu_sheets();
/// Returns the device of that name; nullptr if it is unknown.
const GpuSheet* find_gpu(const std::string& name);

struct EpochTimeOptions {
  GpuSheet gpu;
  Link link;
  PlanFlags flags;
  std::string efficiency_source = "of ResNet-50 on an RTX 4090, published";
};

/// Seconds of an epoch, each part as if it ran alone. Reading and decoding overlap with computing; the exchange is the
/// part that does not.
struct EpochTime {
  double step_seconds = 0;  ///< Computing of one step on one device.
  double computing = 0;     ///< Computing of all steps.
  double exchange = 0;      ///< All-reduce of gradients that backward does not hide.
  double reading = 0;       ///< Reading decoded rows from storage.
  double decoding = 0;      ///< Reading and decoding all rows. 0 means unknown.
  double gradient_bytes = 0;

  /// Time of the devices: computing and exchange.
  double devices() const { return computing + exchange; }
  /// Time of an epoch of decoded rows: the longer of devices() and reading.
  double seconds() const { return devices() > reading ? devices() : reading; }
  /// Bottleneck: "computing", "the exchange of gradients" or "reading".
  std::string bound() const;
};

/// Predicts an epoch from the plan of a dry run.
EpochTime predict_epoch(const MemoryPlan& memory, const EpochTimeOptions& options);

/// Formats the prediction as lines, each figure with its source. With several devices the last line is the
/// `trainkit scale` command for the same step.
std::string describe_epoch(const MemoryPlan& memory, const EpochTimeOptions& options, const EpochTime& time);
/// Formats the prediction as JSON.
nlohmann::ordered_json epoch_json(const EpochTimeOptions& options, const EpochTime& time);

}  // namespace trainkit::detail
