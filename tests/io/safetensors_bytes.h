#pragma once
/// Safetensors files built byte by byte.

#include <cstdint>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <string>
#include <string_view>

#include "trainkit/core/fs.h"

namespace trainkit::test {

inline void overwrite(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string file_bytes(const std::string& path) { return Fs::posix().read_file(path, 1 << 24).value(); }

inline std::string length_prefix(uint64_t length) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes;
}

/// A file with this header and `data_bytes` bytes of data.
inline std::string file_of(const std::string& header, size_t data_bytes = 0) {
  return length_prefix(header.size()) + header + std::string(data_bytes, '\1');
}

// Uses append: g++ 12 gives a false overflow warning for `"x" + std::string`.

/// The pieces, one after the other.
inline std::string joined(std::initializer_list<std::string_view> pieces) {
  std::string all;
  for (const std::string_view piece : pieces) all += piece;
  return all;
}

/// The header entry of one tensor.
inline std::string member(std::string_view name, std::string_view dtype, std::string_view shape,
                          std::string_view offsets) {
  return joined({"\"", name, R"(":{"dtype":")", dtype, R"(","shape":)", shape, R"(,"data_offsets":)", offsets, "}"});
}

inline std::string object(std::string_view members) { return joined({"{", members, "}"}); }

}  // namespace trainkit::test
