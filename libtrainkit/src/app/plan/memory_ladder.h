#pragma once
// Lists options that reduce the memory of a run.

#include <string>

#include "trainkit/app/memory_plan.h"
#include "trainkit/memory/batch_size_planner.h"
#include "trainkit/train/step_memory.h"

namespace trainkit::detail {

/// Describes the plan and the options to reduce memory, in this order: smaller batches, smaller models,
/// accumulation, no cache, more or fewer devices. Each option has its predicted memory of one device. Records the
/// smaller models.
std::string memory_ladder(BatchSizePlanner planner, const StepRecipe& recipe, const MemoryPlan& memory);

}  // namespace trainkit::detail
