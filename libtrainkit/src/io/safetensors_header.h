#pragma once
/// The header of a safetensors file and the table of its dtypes.

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainkit/io/safetensors.h"

namespace trainkit::detail {

struct SafetensorsDtype {
  std::string_view name;
  int bits;
  /// The type that holds it in LibTorch, if there is one.
  std::optional<c10::ScalarType> scalar_type;
};

/// In the reference's order, by which its writer sorts.
const std::vector<SafetensorsDtype>& safetensors_dtypes();
/// nullptr if there is none.
const SafetensorsDtype* find_dtype(std::string_view name);
const SafetensorsDtype* find_dtype(c10::ScalarType type);

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // in the order of the data
  SafetensorsMetadata metadata;
};

/// Length of the header at most; the reference's limit.
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;

/// Parses and checks the header `text` of the file `path`, whose data has `data_bytes` bytes.
absl::StatusOr<SafetensorsHeader> parse_safetensors_header(std::string_view text, uint64_t data_bytes,
                                                           const std::string& path);

/// An error about a safetensors file, exit code 5.
Error safetensors_error(const std::string& path, std::string field, std::string problem);

}  // namespace trainkit::detail
