#pragma once
/// Sources of formats with a file of their own here.

#include <absl/status/statusor.h>

#include <cstddef>
#include <memory>

#include "trainkit/arrays/array_source.h"
#include "trainkit/io/mapped_file.h"

namespace trainkit::detail {

/// Opens the HDF5 part of a file at byte `at`. Its arrays are the datasets of all groups ("group/name"), also those
/// that cannot be read. Reads with gzip and shuffle; see Note [HDF5 finds, we read]. Errors: data.hdf5 (exit code 4).
absl::StatusOr<std::shared_ptr<const ArraySource>> open_hdf5(std::shared_ptr<const MappedFile> file, size_t at);

/// Opens a zip archive of NumPy arrays, as numpy.savez and savez_compressed write it. An array has the name of its
/// member without ".npy"; other members are listed and not read. Errors: data.npz (exit code 4).
absl::StatusOr<std::shared_ptr<const ArraySource>> open_npz(std::shared_ptr<const MappedFile> file);

}  // namespace trainkit::detail
