#pragma once
/// An array whose elements lie in a mapped file, one after the other.

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "trainkit/io/mapped_file.h"

namespace trainkit::detail {

/// Reads all rows or some of them, without keeping pages of the file in memory. Thread-safe.
struct StoredArray {
  std::shared_ptr<const MappedFile> file;
  /// Of the first element. All elements lie within the file.
  int64_t offset = 0;
  at::ScalarType dtype = at::kByte;
  /// Sizes of the tensor.
  std::vector<int64_t> sizes;
  /// The tensor's dimension of each dimension in the file, from the slowest to the fastest: {2, 0, 1} for an ENVI cube
  /// in bands. Empty: those of the tensor in their order.
  std::vector<int64_t> order = {};
  /// Whether the elements have the other byte order.
  bool is_swapped = false;

  /// Reads the whole array into a new contiguous CPU tensor. Errors: those of MappedFile::check.
  absl::StatusOr<at::Tensor> read() const;
  /// Reads rows [begin, begin + count) of the first dimension.
  absl::StatusOr<at::Tensor> read_rows(int64_t begin, int64_t count) const;
};

/// Returns the dtype as which elements of a file are read: uint8 for bools, since a bool with a byte other than 0 and 1
/// would be undefined behaviour.
at::ScalarType raw_dtype(at::ScalarType dtype);
/// Makes values of contiguous elements of raw_dtype(dtype), in place if possible.
at::Tensor values_of_raw(const at::Tensor& raw, at::ScalarType dtype, bool is_swapped);

/// Swaps the bytes of each element of a contiguous tensor.
void swap_bytes(const at::Tensor& tensor);

}  // namespace trainkit::detail
