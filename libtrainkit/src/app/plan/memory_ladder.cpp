#include "app/plan/memory_ladder.h"

#include <fmt/format.h>

#include "trainkit/core/format.h"

namespace trainkit::detail {
namespace {

constexpr int64_t kMostRecordedRows = 8;  // after a failed run a fast answer matters more than an exact one

class Ladder {
 public:
  Ladder(BatchSizePlanner& planner, const StepRecipe& recipe, const MemoryPlan& memory)
      : planner_(planner), recipe_(recipe), memory_(memory) {}

  void add_batch(const std::string& what, int64_t rows, int64_t grad_accum_steps) {
    if (const auto plan = planner_.describe(rows, grad_accum_steps); plan.ok()) add(what, plan->memory);
  }

  void add_choice(const StepRecipe::Choice& choice) {
    StepRecipe other = recipe_;
    choice.second(other);
    const auto record = [&](int64_t rows, int64_t micro_batches) {
      return record_step_memory(other, rows, micro_batches);
    };
    auto planner = BatchSizePlanner::create(record, memory_.options, kMostRecordedRows);
    if (!planner.ok()) return;
    const auto plan = planner->describe(memory_.plan.batch_size, memory_.plan.grad_accum_steps);
    if (plan.ok() && plan->memory.peak.total() < memory_.plan.memory.peak.total())
      add(choice.first, plan->memory);  // otherwise it does not help
  }

  std::string take() { return std::move(text_); }

 private:
  int64_t bytes_of(const MemoryPrediction& memory) const {
    const bool for_gpu = memory_.options.reserve_bytes > 0;
    return for_gpu ? memory.device.reserved_bytes : memory.peak.total();
  }

  void add(const std::string& what, const MemoryPrediction& memory) {
    text_ += fmt::format("  {:<44} {:>10}\n", what, format_size(bytes_of(memory)));
  }

  BatchSizePlanner& planner_;
  const StepRecipe& recipe_;
  const MemoryPlan& memory_;
  std::string text_ = {};
};

}  // namespace

std::string memory_ladder(BatchSizePlanner planner, const StepRecipe& recipe, const MemoryPlan& memory) {
  const int64_t rows = memory.plan.batch_size, steps = memory.plan.grad_accum_steps, devices = memory.plan.devices;
  Ladder ladder(planner, recipe, memory);
  int64_t least = rows;
  for (const int64_t fewer : {rows / 2, rows / 4, int64_t{1}}) {
    if (fewer < 1 || fewer >= least) continue;
    least = fewer;
    ladder.add_batch(fmt::format("--batch_size {}", fewer), fewer, steps);
  }
  for (const auto& choice : recipe.smaller) ladder.add_choice(choice);
  if (devices > 1 && recipe.sharding == Sharding::kNone) {
    const auto divide = [devices](Sharding sharding) {
      return [=](StepRecipe& other) { other.sharding = sharding, other.ranks = devices; };
    };
    const std::string strategy = recipe.for_gpu ? "" : " (ddp)";  // dp on the CPU has one optimizer
    ladder.add_choice({"--shard optimizer" + strategy, divide(Sharding::kOptimizer)});
    ladder.add_choice({"--shard gradients" + strategy, divide(Sharding::kGradients)});
  }
  for (const int64_t parts : {2, 4}) {
    if (rows % parts != 0) continue;
    ladder.add_batch(fmt::format("--batch_size {} --grad_accum_steps {}", rows / parts, steps * parts), rows / parts,
                     steps * parts);
  }
  for (const auto& choice : recipe.without_cache) ladder.add_choice(choice);
  if (rows > 1) {
    ladder.add_batch(fmt::format("{} devices instead of {}, same global batch", 2 * devices, devices), rows / 2, steps);
  }
  if (devices > 1) {
    ladder.add_batch(
        fmt::format("{} device{} instead of {}, same --batch_size", devices / 2, devices / 2 == 1 ? "" : "s", devices),
        rows, steps);
  }
  return to_text(memory.describe()) + "\nWhat may help, with the predicted memory of one device:\n" + ladder.take() +
         fmt::format("  {:<44} {:>10}\n", "a device has", format_size(memory.options.device_bytes));
}

}  // namespace trainkit::detail
