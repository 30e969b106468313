#pragma once
/// The output of `PROGRAM plan`.

#include <nlohmann/json.hpp>
#include <string>

#include "trainkit/app/memory_plan.h"
#include "trainkit/app/plan.h"

namespace trainkit::detail {

/// Returns the plan as JSON; unknown memory is null.
nlohmann::ordered_json memory_json(const MemoryPlan& memory);

/// Returns the published parts of `example` as JSON: "example" in words, and under "parts" for each part "guide_bytes"
/// (smallest and largest) and "bytes" (predicted).
nlohmann::ordered_json guide_json(const PlanExample& example, const MemoryPlan& memory);

/// Formats a known plan as a table: rows, steps, predicted memory, and the published parts of `example` if it has any.
/// `assumes_memory`: whether --gpu_memory is the example's.
std::string plan_table(const PlanExample& example, const MemoryPlan& memory, bool assumes_memory);

}  // namespace trainkit::detail
