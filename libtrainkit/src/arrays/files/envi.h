#pragma once
/// What ENVI headers say about their cubes.

#include <absl/status/statusor.h>

#include <string>
#include <vector>

namespace trainkit::detail {

/// Reads the field "wavelength" of the header: one number for each band, in the header's unit. Empty if the header has
/// no such field. `path` is that of read_envi. Errors: those of read_envi about headers.
absl::StatusOr<std::vector<double>> read_envi_wavelengths(const std::string& path);

}  // namespace trainkit::detail
