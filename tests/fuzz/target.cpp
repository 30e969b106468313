#include "target.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "temp_dir.h"
#include "trainkit/core/error.h"

namespace trainkit::fuzz {

std::vector<Target>& targets() {
  static std::vector<Target> all;
  return all;
}

void require(bool holds, const std::string& rule) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s\n", rule.c_str());
  std::abort();
}

void require_named(const absl::Status& status, const std::vector<std::string>& ids) {
  const auto error = error_of(status);
  require(error.has_value(), "an error of ours: " + status.ToString());
  const bool known =
      std::any_of(ids.begin(), ids.end(), [&](const std::string& id) { return error->id.starts_with(id); });
  require(known, "an error about the file: " + status.ToString());
  const std::string text = error_line(status);
  const bool printable = std::none_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
  require(printable && text.size() <= 400, "one printable line: " + text);
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const at::Tensor left = a.contiguous(), right = b.contiguous();
  return left.nbytes() == 0 || std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0;
}

MemoryFile::MemoryFile() : descriptor_(::memfd_create("fuzz", MFD_CLOEXEC)) {
  if (descriptor_ < 0) throw std::runtime_error("memfd_create failed");
  path_ = "/proc/self/fd/" + std::to_string(descriptor_);
}

MemoryFile::~MemoryFile() { ::close(descriptor_); }

const std::string& MemoryFile::write(std::string_view bytes) {
  const bool written = ::ftruncate(descriptor_, 0) == 0 &&
                       ::pwrite(descriptor_, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size());
  if (!written) throw std::runtime_error("cannot write to memory");
  return path_;
}

const std::string& folder() {
  static const test::TempDir made;
  static const std::string path = made.path().string();
  return path;
}

std::string read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  if (!file) throw std::runtime_error("cannot read " + path);
  return std::move(bytes).str();
}

std::string write_bytes(const std::string& name, std::string_view bytes) {
  std::string path = folder() + "/" + name;
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  const bool written = descriptor >= 0 && ::write(descriptor, bytes.data(), bytes.size()) == std::ssize(bytes);
  if (descriptor < 0 || ::close(descriptor) != 0 || !written) throw std::runtime_error("cannot write " + path);
  return path;
}

std::pair<std::string_view, std::string_view> split(std::string_view bytes, std::string_view separator) {
  const size_t at = bytes.find(separator);
  if (at == bytes.npos) return {bytes, {}};
  return {bytes.substr(0, at), bytes.substr(at + separator.size())};
}

}  // namespace trainkit::fuzz
