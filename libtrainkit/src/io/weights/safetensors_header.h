#pragma once
/// Parses the header of a safetensors file and defines its dtypes.

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trainkit/io/safetensors.h"

namespace trainkit::detail {

struct SafetensorsDtype {
  std::string_view name;
  int bits;
  /// LibTorch's type; nullopt if there is none.
  std::optional<c10::ScalarType> scalar_type;
};

/// All dtypes in the reference's order, which its writer uses for sorting.
const std::vector<SafetensorsDtype>& safetensors_dtypes();
/// Return the dtype, or nullptr if there is none.
const SafetensorsDtype* find_dtype(std::string_view name);
const SafetensorsDtype* find_dtype(c10::ScalarType type);

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // in the order of their data
  SafetensorsMetadata metadata;
};

/// Maximum header length in bytes, the same as the reference's.
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;

/// Header and tensor order of a file to write.
struct SafetensorsPlan {
  std::string header;
  std::vector<const std::pair<std::string, at::Tensor>*> order;
  int64_t data_bytes = 0;
};

/// Plans a file. Of `tensors`, which may be meta tensors, only names, dtypes and shapes count; the plan points to them.
absl::StatusOr<SafetensorsPlan> plan_safetensors(const NamedTensors& tensors, const SafetensorsMetadata& metadata);

/// Parses and checks the header `text` of file `path`, whose data section has `data_bytes` bytes.
absl::StatusOr<SafetensorsHeader> parse_safetensors_header(std::string_view text, uint64_t data_bytes,
                                                           const std::string& path);

/// Returns an error about a safetensors file, exit code 5.
Error safetensors_error(const std::string& path, std::string field, std::string problem);

}  // namespace trainkit::detail
