#pragma once
/// Reads the bytes of a pickle from memory or from a file.

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"

namespace trainkit::detail {

/// Largest accepted pickle. Pickles of models have a few hundred bytes per tensor.
inline constexpr uint64_t kMaxPickleBytes = 64 << 20;

class PickleInput {
 public:
  /// Reads from `bytes`. `where` is the prefix of offsets in errors: "w.pt@data.pkl+".
  PickleInput(std::string bytes, std::string where);
  /// Reads the start of `file` incrementally. `file` must outlive this object.
  explicit PickleInput(const ReadableFile& file);

  uint64_t position() const { return position_; }
  bool at_end() const { return position_ == total_; }
  /// Returns the next `count` bytes, or an error if fewer are left. Valid until the next call.
  absl::StatusOr<std::string_view> take(uint64_t count);
  /// Returns the bytes up to the next line end, and skips the line end.
  absl::StatusOr<std::string_view> line();
  /// Returns bytes that were already read.
  std::string_view view(uint64_t offset, uint64_t size) const { return std::string_view(bytes_).substr(offset, size); }

  /// Returns an error (exit code 5) about the byte at `offset`.
  Error error(uint64_t offset, std::string problem) const;

 private:
  absl::Status fill(uint64_t end);
  std::string bytes_;  // bytes read so far
  std::string where_;
  const ReadableFile* file_ = nullptr;
  uint64_t total_ = 0;
  uint64_t position_ = 0;
};

}  // namespace trainkit::detail
