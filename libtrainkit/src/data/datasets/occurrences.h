#pragma once
// Numbers the occurrences of rows that an adapter shows several times.

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "trainkit/data/dataset.h"

namespace trainkit::detail {

/// Returns for each index how often it occurs before; empty if no index is repeated.
std::vector<int64_t> occurrences_of(const std::vector<int64_t>& indices);

/// Numbers the occurrences of the rows of concatenated datasets. Returns the number for all rows of each part, which is
/// not 0 if the same object is an earlier part. `rows` gets a map per part, with the numbers of those rows that other
/// objects read from the same dataset too. Two occurrences of a row have different numbers, unless they are in the same
/// part; the first has 0.
std::vector<int64_t> occurrences_of_parts(std::span<const std::shared_ptr<const Dataset>> parts,
                                          std::vector<std::unordered_map<int64_t, int64_t>>& rows);

}  // namespace trainkit::detail
