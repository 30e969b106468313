#pragma once
/// Bytes of files that tests build.

#include <fstream>
#include <initializer_list>
#include <string>
#include <string_view>

#include "trainkit/core/fs.h"

namespace trainkit::test {

template <class T>
std::string little_endian(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(T));
}

// Appends: g++ 12 gives a false overflow warning for `"x" + std::string`.
inline std::string join(std::initializer_list<std::string_view> pieces) {
  std::string all;
  for (const std::string_view piece : pieces) all += piece;
  return all;
}

inline std::string repeat(std::string_view text, size_t times) {
  std::string all;
  all.reserve(text.size() * times);
  for (size_t i = 0; i < times; ++i) all += text;
  return all;
}

inline void write_bytes(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}
inline std::string read_bytes(const std::string& path) { return Fs::posix().read_file(path, int64_t{1} << 30).value(); }

}  // namespace trainkit::test
