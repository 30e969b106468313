#pragma once
/// ENVI cubes in mapped files, and what their headers say about them.

#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "arrays/files/stored_array.h"

namespace trainkit::detail {

/// Finds the cube of a header and its data file. `path` and errors: those of read_envi.
absl::StatusOr<StoredArray> open_envi(const std::string& path);

/// Reads the field "wavelength" of the header: one number for each band, in the header's unit. Empty if the header has
/// no such field. `path` is that of read_envi. Errors: those of read_envi about headers.
absl::StatusOr<std::vector<double>> read_envi_wavelengths(const std::string& path);

}  // namespace trainkit::detail
