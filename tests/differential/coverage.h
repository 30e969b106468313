#pragma once
/// Counts what is drawn.

#include <cstdint>
#include <set>
#include <string>

#include "spec.h"

namespace trainkit::differential {

/// Names of what a program uses: "optimizer adam", "layer conv1d frozen", "oracle ranks".
std::set<std::string> features(const Spec& spec);

/// Prints how often `count` programs have each feature, and each pair of features that ten times as many programs have.
/// Returns whether each feature occurs at least count / 100 times and each pair count / 1000 times.
bool print_coverage(uint64_t seed, int64_t count);

}  // namespace trainkit::differential
