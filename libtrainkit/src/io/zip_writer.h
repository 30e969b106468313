#pragma once
/// Writes zip archives as PyTorch reads them: stored entries whose data begins at multiples of 64.

#include <absl/status/status.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/zip_reader.h"
#include "trainkit/core/fs.h"

namespace trainkit::detail {

class ZipWriter {
 public:
  /// `zip64_from`: numbers from this one on go into 64-bit fields. Lower in tests, which make no files of 4 GiB.
  explicit ZipWriter(WritableFile& file, uint64_t zip64_from = 0xffffffff) : file_(file), zip64_from_(zip64_from) {}

  absl::Status add(std::string_view name, const void* data, size_t size);
  absl::Status add(std::string_view name, std::string_view bytes) { return add(name, bytes.data(), bytes.size()); }
  /// The directory. Nothing may be added after it.
  absl::Status finish();

 private:
  struct Written {
    ZipEntry entry;
    uint64_t header;
  };
  WritableFile& file_;
  uint64_t zip64_from_;
  uint64_t position_ = 0;
  std::vector<Written> written_;
};

}  // namespace trainkit::detail
