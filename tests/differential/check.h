#pragma once
/// Runs a program and its oracle, and compares them.

#include <string>
#include <vector>

#include "spec.h"

namespace trainkit::differential {

class Oracle;

/// Returns a line for each difference. `oracle` may be null: programs that need it then have none. `folder` is empty or
/// the folder in which a killed run of this program has left its checkpoints.
std::vector<std::string> check(const Spec& spec, const Oracle* oracle, const std::string& folder = {});

/// Runs a program of the oracle "resume" until it kills its own process. The folder receives its checkpoints.
void run_until_killed(const Spec& spec, const std::string& folder);

}  // namespace trainkit::differential
