#include "app/plan/plan_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "trainkit/app/job_sizes.h"
#include "trainkit/core/format.h"

namespace trainkit::detail {
namespace {

constexpr double kMegabyte = 1e6;  // the reference guides' MB

int64_t bytes_of(const PlanExample::Part& part, const MemoryPlan& memory) {
  if (part.memory_class == "total") return memory.plan.memory.peak.total();
  for (size_t i = 0; i < kMemoryClasses; ++i) {
    if (part.memory_class == to_string(static_cast<MemoryClass>(i))) return memory.largest.by_class[i];
  }
  int64_t bytes = 0;
  for (const auto& [module, size] : memory.weight_bytes) {
    if (std::find(part.modules.begin(), part.modules.end(), module) != part.modules.end()) bytes += size;
  }
  return bytes;
}

std::string guide_table(const PlanExample& example, const MemoryPlan& memory) {
  if (example.parts.empty()) return {};
  std::string text =
      fmt::format("\ncompared with the reference guide's example ({}), MB per device\n{:<14} {:>10} {:>12}\n",
                  example.guide, "", "ours", "guide");
  for (const PlanExample::Part& part : example.parts) {
    text += fmt::format("{:<14} {:>10.1f} {:>12}\n", part.name, static_cast<double>(bytes_of(part, memory)) / kMegabyte,
                        part.least_mb == part.most_mb ? fmt::format("{}", part.least_mb)
                                                      : fmt::format("{}-{}", part.least_mb, part.most_mb));
  }
  return text + "peak of each part; the peaks are not at the same time\n";
}

std::string time_line(const MemoryPlan& memory) {
  if (memory.step_seconds == 0) {
    return "time unknown: no step was measured on such a device (--measure measures steps on this machine's device)\n";
  }
  return fmt::format("{:.3g} s per step, {} per epoch, {} in total, measured on {}{}\n", memory.step_seconds,
                     format_duration(memory.step_seconds * static_cast<double>(memory.steps_per_epoch)),
                     format_duration(memory.step_seconds * static_cast<double>(memory.steps)), memory.timed_on,
                     memory.plan.devices == 1 ? "" : ", without all-reduce of gradients");
}

/// Returns how many parameters fit into `bytes`; see kJobCosts.
std::string largest_model(int64_t bytes) {
  const JobCost& parameter = kJobCosts.front();
  return fmt::format("at {:g} bytes per parameter (AdamW, float32) it holds {} parameters without activations\n",
                     parameter.memory, format_count(static_cast<double>(bytes) / parameter.memory));
}

}  // namespace

nlohmann::ordered_json guide_json(const PlanExample& example, const MemoryPlan& memory) {
  nlohmann::ordered_json parts = nlohmann::ordered_json::object();
  for (const PlanExample::Part& part : example.parts) {
    parts[part.name.substr(part.name.find_first_not_of(' '))] = {
        {"guide_bytes",
         {static_cast<int64_t>(part.least_mb * kMegabyte), static_cast<int64_t>(part.most_mb * kMegabyte)}},
        {"bytes", bytes_of(part, memory)}};
  }
  return {{"example", example.guide}, {"parts", parts}};
}

std::string plan_table(const PlanExample& example, const MemoryPlan& memory, bool assumes_memory) {
  const BatchSizePlan& plan = memory.plan;
  const MemoryBytes& peak = plan.memory.peak;
  std::string text =
      example.data.empty() ? "" : fmt::format("data: {} (assumed; --data_dir plans for yours)\n", example.data);
  text += fmt::format("{} rows per device x {} device{} x {} accumulated = {} per step\n", plan.batch_size,
                      plan.devices, plan.devices == 1 ? "" : "s", plan.grad_accum_steps, plan.global_batch_size());
  if (plan.lost_rows != 0) {
    text += fmt::format("{} rows of the global batch are left over by this division\n", plan.lost_rows);
  }
  if (!memory.sharding_advice.empty()) text += memory.sharding_advice + "\n";
  text += fmt::format("{} steps per epoch, {} in total\n", memory.steps_per_epoch, memory.steps) + time_line(memory);
  text += fmt::format("\n{:<14} {:>12}\n", "per device", "predicted");
  const auto add = [&](const char* name, int64_t bytes, const char* remark = "") {
    text += fmt::format("{:<14} {:>12}{}\n", name, format_size(bytes), remark);
  };
  for (size_t i = 0; i < kMemoryClasses; ++i) {
    if (peak.by_class[i] != 0) add(to_string(static_cast<MemoryClass>(i)), peak.by_class[i]);
  }
  add("total", peak.total());
  add("allocated", plan.memory.device.allocated_bytes, "   by CUDA's allocator");
  add("reserved", plan.memory.device.reserved_bytes);
  if (memory.options.reserve_bytes > 0) {
    add("reserve", memory.options.reserve_bytes, "   allowance for driver, cuBLAS and cuDNN");
  }
  add("a device has", memory.options.device_bytes, assumes_memory ? "   assumed; override with --gpu_memory" : "");
  if (memory.options.device_bytes > 0) text += largest_model(memory.options.device_bytes);
  text +=
      fmt::format("checked with {} rows: relative error {:.2f}%\n", memory.check_batch_size, 100 * memory.check_error);
  return text + guide_table(example, memory);
}

}  // namespace trainkit::detail
