#pragma once
/// The header of a NumPy file.

#include <absl/status/statusor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trainkit::detail {

struct NpyHeader {
  at::ScalarType dtype;
  std::vector<int64_t> shape;
  bool fortran_order;   ///< the first dimension varies fastest
  int64_t data_offset;  ///< of the array, from the beginning of the file
};

/// Reads the header at the beginning of `bytes`. kInvalidArgument says what is wrong with it.
/// Source: numpy.lib.format. The header is a Python literal; this reads the three entries that NumPy writes, in any
/// order.
absl::StatusOr<NpyHeader> parse_npy_header(std::string_view bytes);

/// Bytes of the array; kInvalidArgument says what is wrong if that does not fit 63 bits or the `available` bytes.
absl::StatusOr<int64_t> npy_array_bytes(const NpyHeader& header, int64_t available);

/// The name of a dtype, "<f4"; empty if NumPy has none.
std::string_view npy_dtype_name(at::ScalarType dtype);

}  // namespace trainkit::detail
