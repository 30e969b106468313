#pragma once
/// Reads and writes whole arrays: NumPy `.npy` files, ENVI image cubes and PNG images.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <string>

namespace trainkit {

/// Appends elements to an array or rows to a picture that is written in pieces, in their order.
using AppendElements = std::function<absl::Status(const at::Tensor& elements)>;
using WriteElements = std::function<absl::Status(const AppendElements& append)>;

// ---- Reads and writes whole arrays as NumPy `.npy` files. For arrays larger than memory see
// data/tensor_dataset.h.

/// Reads an array into a new contiguous CPU tensor. Supports formats 1.0 to 3.0, C and Fortran order, little-endian
/// numbers and bool.
///
/// Errors (exit code 4): those of MappedFile::open; data.npy for an invalid or unsupported file (big-endian; objects,
/// which would be pickles). Source: numpy.lib.format, NumPy 2.4.
absl::StatusOr<at::Tensor> read_npy(const std::string& path);

/// Writes format 1.0 in C order, atomically (write_file_atomically). The bytes equal those of numpy.save in NumPy 2 for
/// an array in C order. kInvalidArgument for a dtype that NumPy lacks. Disk errors: exit code 6.
absl::Status write_npy(const std::string& path, const at::Tensor& tensor);
/// Writes an array of these sizes that need not fit in memory: `write` appends its elements, as tensors of `dtype` and
/// any shape. Nothing is written if it returns an error. Throws c10::ValueError for another dtype or number of
/// elements.
absl::Status write_npy(const std::string& path, at::ScalarType dtype, at::IntArrayRef sizes,
                       const WriteElements& write);

// ---- Reads image cubes in ENVI format: a text header `scene.hdr` and a file of raw numbers next to it.

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

// ---- Reads and writes images as PNG files.

/// Reads an image into a new CPU tensor (height, width, 3) uint8, as write_png writes it: greys become three equal
/// channels, palettes are resolved, transparency is ignored and 16 bits are reduced to 8.
///
/// Errors (exit code 4): those of MappedFile::open; data.png with libpng's message for an invalid file, and for an
/// image of over 2^28 pixels.
absl::StatusOr<at::Tensor> read_png(const std::string& path);

/// Largest height and width of an image, that of libpng.
inline constexpr int64_t kMostPngSide = 1'000'000;

/// Writes `image`, (height, width, 3) uint8, atomically (write_file_atomically). The bytes depend only on the image.
/// Disk errors: exit code 6. Throws c10::ValueError for another shape or dtype, and for a height or width of 0 or over
/// kMostPngSide.
absl::Status write_png(const std::string& path, const at::Tensor& image);
/// Writes an image that need not fit in memory: `write` appends its rows, as tensors (any number, width, 3) uint8.
/// Nothing is written if it returns an error.
absl::Status write_png(const std::string& path, int64_t height, int64_t width, const WriteElements& write);
/// Returns the bytes that write_png writes for `image`. Throws as write_png.
absl::StatusOr<std::string> encode_png(const at::Tensor& image);

}  // namespace trainkit
