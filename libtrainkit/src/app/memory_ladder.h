#pragma once
// What may help where memory is out.

#include <string>

#include "trainkit/app/memory_plan.h"
#include "trainkit/memory/batch_size_planner.h"
#include "trainkit/train/step_memory.h"

namespace trainkit::detail {

/// The plan, and the steps that may be taken, in the guides' order: smaller batches, smaller models, accumulation, no
/// cache, more or fewer devices; each with the memory of one device that it is predicted to take. Records the smaller
/// models.
std::string memory_ladder(BatchSizePlanner planner, const StepRecipe& recipe, const MemoryPlan& memory);

}  // namespace trainkit::detail
