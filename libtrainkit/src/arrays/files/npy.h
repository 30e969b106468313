#pragma once
/// Arrays of NumPy's format in mapped files.

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>

#include "arrays/files/stored_array.h"

namespace trainkit::detail {

/// Finds the array in `size` bytes of a file from `begin`. kInvalidArgument describes the fault.
absl::StatusOr<StoredArray> find_npy(std::shared_ptr<const MappedFile> file, int64_t begin, int64_t size);

/// Finds the array of a whole file. Errors: those of read_npy.
absl::StatusOr<StoredArray> open_npy(std::shared_ptr<const MappedFile> file);

}  // namespace trainkit::detail
