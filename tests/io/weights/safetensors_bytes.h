#pragma once
/// Safetensors files built byte by byte.

#include <cstdint>
#include <string>
#include <string_view>

#include "io/bytes.h"

namespace trainkit::test {

/// A file with this header and `data_bytes` bytes of data.
inline std::string file_of(const std::string& header, size_t data_bytes = 0) {
  return little_endian(uint64_t{header.size()}) + header + std::string(data_bytes, '\1');
}

/// The header entry of one tensor.
inline std::string member(std::string_view name, std::string_view dtype, std::string_view shape,
                          std::string_view offsets) {
  return join({"\"", name, R"(":{"dtype":")", dtype, R"(","shape":)", shape, R"(,"data_offsets":)", offsets, "}"});
}

inline std::string object(std::string_view members) { return join({"{", members, "}"}); }

}  // namespace trainkit::test
