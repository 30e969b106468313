#include "train/step/step_precision.h"

#include <fmt/format.h>
#include <torch/nn/module.h>

namespace trainkit::detail {

std::string precision_problem(Precision precision, const DeviceReplicator& devices) {
  if (precision == Precision::kFp32) return "";
  if (precision == Precision::kFp16 && devices.device().is_cpu()) {
    return "precision fp16 needs a GPU; use bf16 on the CPU";
  }
  // Autocast leaves float64 as it is, so that such a run would be in float64 without a word.
  for (const auto& parameter : devices.module()->named_parameters()) {
    if (parameter.value().scalar_type() != at::kDouble) continue;
    return fmt::format(
        "mixed precision is for float32 models, and parameter {} is float64; use precision fp32, which "
        "keeps float64",
        parameter.key());
  }
  return "";
}

}  // namespace trainkit::detail
