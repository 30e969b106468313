#pragma once
/// zlib streams, read forward and never beyond what the caller asks for.

#include <absl/status/statusor.h>
#include <zlib.h>

#include <cstddef>
#include <memory>
#include <span>

namespace trainkit::detail {

/// Inflates `compressed`, which must outlive it. One thread.
class Inflater {
 public:
  explicit Inflater(std::span<const std::byte> compressed);
  ~Inflater();
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  /// Fills `out` as far as the stream goes and returns how many bytes that is: fewer only at its end. kDataLoss says
  /// what is wrong with the stream, also when the compressed bytes end before it does.
  absl::StatusOr<size_t> read(void* out, size_t size);

  /// OK if the stream ends here, its checksum is right and no compressed byte is left over.
  absl::Status finish();

 private:
  absl::Status failure(int code) const;
  z_stream stream_ = {};
  std::span<const std::byte> rest_;  // what zlib, whose counts have 32 bits, was not given yet
  bool ended_ = false;
};

}  // namespace trainkit::detail
