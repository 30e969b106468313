#pragma once
/// Divides the rows of a data set into parts.

#include <cstdint>
#include <vector>

namespace trainkit {

/// Divides rows 0 .. rows - 1 at random into one part for each share; returns the rows of each part in ascending order.
/// Shares are of 1 and add up to it. A function of `rows`, `shares` and `seed` alone. Sizes are rounded down, and the
/// rows that are left go to the first parts, one each. Source: torch.utils.data.random_split. Throws c10::ValueError
/// for shares that are negative or do not add up to 1.
///
///   const auto parts = random_split(table.rows(), {0.8, 0.1, 0.1}, run.seed);
///   const auto training = std::make_shared<Subset>(rows, parts[0]);
std::vector<std::vector<int64_t>> random_split(int64_t rows, const std::vector<double>& shares, uint64_t seed);

}  // namespace trainkit
