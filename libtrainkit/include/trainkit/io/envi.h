#pragma once
/// Reads image cubes in ENVI format: a text header `scene.hdr` and a file of raw numbers next to it.

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include <string>
#include <vector>

namespace trainkit {

/// Reads an image cube into a new contiguous CPU tensor (height, width, bands) with the data type of the file.
///
/// `path` is the header, or the data file whose header is next to it. The name of the data file is the header's without
/// ".hdr", or with .dat, .img, .raw, .bsq, .bil, .bip or .bin instead. Two matching data files are an error.
///
/// Supported fields: samples, lines, bands, header offset, data type (1 to 5 and 12 to 15: all except the complex
/// types), interleave (bsq, bil, bip), byte order. Other fields are ignored.
///
/// Errors (exit code 4): those of MappedFile::open; data.envi, with the line of the header, or the number of bytes by
/// which the data file is too short or too long. Source: "ENVI Header Files", NV5 Geospatial documentation.
absl::StatusOr<at::Tensor> read_envi(const std::string& path);

/// Reads the field "wavelength" of the header: one number for each band, in the header's unit. Empty if the header has
/// no such field. `path` is that of read_envi. Errors: those of read_envi about headers.
absl::StatusOr<std::vector<double>> read_envi_wavelengths(const std::string& path);

}  // namespace trainkit
