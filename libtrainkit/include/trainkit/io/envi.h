#pragma once
/// Image cubes in ENVI's format: a text header `scene.hdr` and a file of plain numbers beside it.

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include <string>

namespace trainkit {

/// A new contiguous tensor (height, width, bands) on the CPU, of the file's own type. `path` is the header, or the data
/// file whose header is beside it. The data file is the header's name without ".hdr", or with .dat, .img, .raw, .bsq,
/// .bil, .bip or .bin in its place; two of them are an error.
///
/// Understood: samples, lines, bands, header offset, data type (1 to 5 and 12 to 15: all but the complex ones),
/// interleave (bsq, bil, bip), byte order. Other fields are passed over. Errors (exit code 4): those of
/// MappedFile::open; data.envi, which names the header's line or says how many bytes the data file lacks or has too
/// many. Source: "ENVI Header Files", NV5 Geospatial documentation.
absl::StatusOr<at::Tensor> read_envi(const std::string& path);

}  // namespace trainkit
