#pragma once
/// Parses the header of a NumPy file.

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
  bool fortran_order;   ///< whether the first dimension varies fastest
  int64_t data_offset;  ///< offset of the array in the file
};

/// Parses the header at the start of `bytes`. kInvalidArgument describes the fault.
///
/// The header is a Python literal; the three entries that NumPy writes are accepted in any order. Source:
/// numpy.lib.format.
absl::StatusOr<NpyHeader> parse_npy_header(std::string_view bytes);

/// Returns the size of the array in bytes. kInvalidArgument if it exceeds 63 bits or the `available` bytes.
absl::StatusOr<int64_t> npy_array_bytes(const NpyHeader& header, int64_t available);

/// Returns the dimensions of the array from the slowest to the fastest in the file.
std::vector<int64_t> npy_order(const NpyHeader& header);

/// Returns NumPy's name of a dtype, for example "<f4". Empty if NumPy has none.
std::string_view npy_dtype_name(at::ScalarType dtype);

}  // namespace trainkit::detail
