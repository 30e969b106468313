#pragma once
/// Decompresses zlib streams incrementally, never beyond the number of bytes requested.

#include <absl/status/statusor.h>
#include <zlib.h>

#include <cstddef>
#include <memory>
#include <span>

namespace trainkit::detail {

/// Decompresses `compressed`, which must outlive this object. Not thread-safe.
class Inflater {
 public:
  explicit Inflater(std::span<const std::byte> compressed);
  ~Inflater();
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  /// Decompresses up to `size` bytes to `out` and returns their number. It is smaller only at the end of the stream.
  /// kDataLoss if the stream is damaged or the compressed bytes end too early.
  absl::StatusOr<size_t> read(void* out, size_t size);

  /// Returns OK if the stream ends here, its checksum is correct and no compressed byte is left.
  absl::Status finish();

 private:
  absl::Status failure(int code) const;
  z_stream stream_ = {};
  std::span<const std::byte> rest_;  // input not yet passed to zlib, whose counts have 32 bits
  bool ended_ = false;
};

}  // namespace trainkit::detail
