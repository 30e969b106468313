#pragma once
// Checks a dataset of a MAT file of version 7.3 before HDF5 reads it. See Note [Checking HDF5 chunks before reading].

#include <absl/status/status.h>
#include <hdf5.h>

#include <string>

#include "trainkit/arrays/mat.h"

namespace trainkit::detail {

inline constexpr int kMostDimensions73 = 32;

inline absl::Status damaged(const std::string& problem) { return absl::DataLossError(problem); }
inline absl::Status refused(const std::string& problem) { return absl::InvalidArgumentError(problem); }

/// HDF5's types for a dtype: in memory, and in files of either byte order. Negative if MATLAB has none.
struct Hdf5Types {
  hid_t memory = -1, little = -1, big = -1;
};
Hdf5Types hdf5_types(at::ScalarType dtype);

/// Checks type, sizes, filters and every chunk of the dataset of `variable`.
absl::Status check_dataset(hid_t dataset, const MatVariable& variable, int64_t file_bytes, const MatOptions& options);

}  // namespace trainkit::detail
