#pragma once
/// The bytes of a pickle, in memory or read ahead from a file.

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"

namespace trainkit::detail {

/// A pickle may have this many bytes; those of models have a few hundred per tensor.
inline constexpr uint64_t kMaxPickleBytes = 64 << 20;

class PickleInput {
 public:
  /// All bytes; `where` stands before the offset in errors: "w.pt@data.pkl+".
  PickleInput(std::string bytes, std::string where);
  /// The start of `file`, which must outlive this, read piece by piece.
  explicit PickleInput(const ReadableFile& file);

  uint64_t position() const { return position_; }
  bool at_end() const { return position_ == total_; }
  /// The next `count` bytes; an error if fewer are left. Valid until the next call.
  absl::StatusOr<std::string_view> take(uint64_t count);
  /// The next bytes up to and without a line end, which is passed.
  absl::StatusOr<std::string_view> line();
  /// Bytes that were taken before.
  std::string_view view(uint64_t offset, uint64_t size) const { return std::string_view(bytes_).substr(offset, size); }

  /// An error (exit code 5) about the byte at `offset`.
  Error error(uint64_t offset, std::string problem) const;

 private:
  absl::Status fill(uint64_t end);
  std::string bytes_;  // what was read so far
  std::string where_;
  const ReadableFile* file_ = nullptr;
  uint64_t total_ = 0;
  uint64_t position_ = 0;
};

}  // namespace trainkit::detail
