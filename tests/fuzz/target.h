#pragma once
/// Shared by the fuzz targets. A target is one file, `<name>.cpp`, with a namespace of its own: test_one_input reads
/// the bytes with a parser of the library as an untrusted file and checks more than the absence of crashes; seeds()
/// returns the small valid inputs that mutation starts from. See README.md here for running them.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trainkit::fuzz {

/// A target. A program of libFuzzer has one, fuzz_replay has all.
struct Target {
  std::string name;
  std::vector<std::string> (*seeds)();  // valid inputs, from the library's own writers
  int (*test_one_input)(const uint8_t* data, size_t size);
};

/// The targets of this program, in any order.
std::vector<Target>& targets();

/// Adds a target before main. Each target defines one.
struct Registered {
  Registered(const char* name, std::vector<std::string> (*seeds)(), int (*test_one_input)(const uint8_t*, size_t)) {
    targets().push_back({name, seeds, test_one_input});
  }
};

/// Prints `rule` on stderr and aborts unless `holds`. The engine keeps the input of such a finding.
void require(bool holds, const std::string& rule);

/// Requires a useful error: one of ours, whose id begins with one of `ids`, in one printable line.
void require_named(const absl::Status& status, const std::vector<std::string>& ids);

/// Returns whether both have the same dtype, shape and bits.
bool same_bits(const at::Tensor& a, const at::Tensor& b);

/// A file in memory that is rewritten for each input, without disk access.
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

/// A private folder for files whose names matter and for files that the library writes; in memory if TMPDIR is (`./dev
/// fuzz` sets it to a folder of /dev/shm). Removed on normal exit.
const std::string& folder();

/// Reads a file, and writes a file below folder().
std::string read_bytes(const std::string& path);
std::string write_bytes(const std::string& name, std::string_view bytes);

/// Splits "abcd" after the first `separator`, for inputs that contain two files.
std::pair<std::string_view, std::string_view> split(std::string_view bytes, std::string_view separator);

inline std::string_view as_text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace trainkit::fuzz
