#pragma once
/// Says how large a job fits a machine.

#include <cstdint>

#include "trainkit/findings.h"

namespace trainkit::tool {

/// Adds the sizes of jobs that fit into `memory` and `disk` bytes, by kJobCosts; a negative number is unknown.
void add_job_sizes(Findings& findings, int64_t memory, int64_t disk);

}  // namespace trainkit::tool
