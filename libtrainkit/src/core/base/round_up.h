#pragma once
#include <cstdint>

namespace trainkit::detail {

/// Returns the least multiple of `unit` that is not less than `value`; both are positive.
constexpr int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace trainkit::detail
