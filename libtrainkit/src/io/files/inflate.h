#pragma once
/// Decompresses deflate streams and gzip files incrementally, never beyond the number of bytes requested.

#include <absl/status/statusor.h>
#include <zlib.h>

#include <cstddef>
#include <memory>
#include <span>

namespace trainkit::detail {

enum class Packing {
  kRaw,   ///< One deflate stream without a header (RFC 1951).
  kZlib,  ///< One zlib stream (RFC 1950).
  kGzip,  ///< The members of a gzip file (RFC 1952), up to zeros that fill a block.
};

/// Decompresses `compressed`, which must outlive this object. Not thread-safe.
class Inflater {
 public:
  explicit Inflater(std::span<const std::byte> compressed, Packing packing = Packing::kZlib);
  ~Inflater();
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  /// Decompresses up to `size` bytes to `out` and returns their number. It is smaller only at the end of the stream.
  /// kDataLoss if the stream is damaged or the compressed bytes end too early.
  absl::StatusOr<size_t> read(void* out, size_t size);

  /// Compressed bytes that were not read.
  std::span<const std::byte> left() const { return left_; }

  /// Returns OK if the stream ends here, its checksum is correct and no compressed byte is left.
  absl::Status finish();

 private:
  absl::Status failure(int code) const;
  z_stream stream_ = {};
  std::span<const std::byte> left_;
  Packing packing_;
  bool ended_ = false;
};

}  // namespace trainkit::detail
