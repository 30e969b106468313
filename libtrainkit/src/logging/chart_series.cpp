#include "logging/chart_series.h"

#include <algorithm>
#include <string_view>

#include "logging/field_names.h"

namespace trainkit::detail {
namespace {

/// Fields that say how the machine does its work, not how the model learns.
constexpr std::string_view kMachineFields[] = {
    fields::kUtilisation,     fields::kDataWaitFraction,      fields::kCopyFraction,
    fields::kComputeFraction, fields::kReduceFraction,        fields::kQueueDepth,
    fields::kHostMemoryBytes, fields::kProcessorWaitFraction, fields::kOtherProcessesFraction,
    fields::kStolenFraction,  fields::kSaveSeconds,           fields::kSaveFraction};

}  // namespace

std::vector<std::pair<std::string, double>> chart_series(const LogRecord& record) {
  const std::string split = record.split + "/", machine = "machine/";
  std::vector<std::pair<std::string, double>> series;
  for (const auto& [name, value] : record.values) {
    const bool of_machine = std::ranges::find(kMachineFields, name) != std::end(kMachineFields);
    series.emplace_back((of_machine ? machine : split) + name, value);
  }
  for (auto lr = record.lr.begin(); lr != record.lr.end(); ++lr) {
    if (std::find(record.lr.begin(), lr, *lr) != lr) continue;
    const std::string number = lr == record.lr.begin() ? "" : "/" + std::to_string(lr - record.lr.begin());
    series.emplace_back(split + fields::kLr + number, *lr);
  }
  const auto add_per_gpu = [&](const char* name, const auto& values) {
    for (size_t gpu = 0; gpu < values.size(); ++gpu) {
      series.emplace_back(machine + name + "/" + std::to_string(gpu), static_cast<double>(values[gpu]));
    }
  };
  add_per_gpu(fields::kGpuMemoryBytes, record.gpu_memory_bytes);
  add_per_gpu(fields::kGpuUtilisation, record.gpu_utilisation);
  series.emplace_back(split + fields::kEpoch, record.epoch);
  return series;
}

}  // namespace trainkit::detail
