#pragma once
/// What fuzz targets share. A target is one file, `<name>.cpp`: LLVMFuzzerTestOneInput reads the bytes as a parser of
/// the library would read a stranger's file and requires more than that nothing crashes; seeds() makes the small valid
/// inputs that mutation starts from. README.md here says how to run them.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// The engine's entry point: libFuzzer's in a build of the preset "fuzz", replay.cpp's in any other.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace trainkit::fuzz {

/// Valid inputs, written by the library's own writers. Each target defines it.
std::vector<std::string> seeds();

/// Says `rule` on stderr and aborts unless it `holds`: a finding, whose input the engine keeps.
void require(bool holds, const std::string& rule);

/// Requires an error that a user can act on: one of ours, whose id begins with one of `ids`, in one printable line.
void require_named(const absl::Status& status, const std::vector<std::string>& ids);

/// Whether both are of one dtype and shape and hold the same bits.
bool same_bits(const at::Tensor& a, const at::Tensor& b);

/// A file in memory that is rewritten for each input; no disk is touched.
class MemoryFile {
 public:
  MemoryFile();
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  /// Replaces the contents. Returns path().
  const std::string& write(std::string_view bytes);
  const std::string& path() const { return path_; }

 private:
  int descriptor_;
  std::string path_;
};

/// A folder of its own for files whose names matter and for what the library writes; in memory where TMPDIR is
/// (`./dev fuzz` sets it to a folder of /dev/shm). Removed when the process ends well.
const std::string& folder();

/// The contents of a file, and a file of these contents below folder().
std::string read_bytes(const std::string& path);
std::string write_bytes(const std::string& name, std::string_view bytes);

/// "abcd" is cut after the first `separator` in it: what holds two files in one input.
std::pair<std::string_view, std::string_view> split(std::string_view bytes, std::string_view separator);

inline std::string_view as_text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace trainkit::fuzz
