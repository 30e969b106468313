#pragma once
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace trainkit::test {

/// Returns the content of a file; empty if there is none.
inline std::string read_text(const std::filesystem::path& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path).rdbuf();
  return bytes.str();
}

}  // namespace trainkit::test
