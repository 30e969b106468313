#pragma once
/// Makes failing programs small.

#include <functional>
#include <string>
#include <vector>

#include "spec.h"

namespace trainkit::differential {

/// What a failure is about, without names and numbers: shrinking keeps it.
std::string kind_of_failure(const std::vector<std::string>& lines);

/// Returns a smaller program that fails in the same way: drops features, layers, steps and rows one at a time while it
/// still does, with at most `runs` runs of `check`.
Spec shrink(const Spec& spec, const std::function<std::vector<std::string>(const Spec&)>& check, int64_t runs = 80);

}  // namespace trainkit::differential
