#pragma once
/// Writes zip archives for PyTorch: stored entries with data aligned to multiples of 64.

#include <absl/status/status.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/files/zip_reader.h"
#include "trainkit/core/fs.h"

namespace trainkit::detail {

class ZipWriter {
 public:
  /// `zip64_from`: smallest number that goes into 64-bit fields. Tests use a lower one to avoid files of 4 GiB.
  explicit ZipWriter(WritableFile& file, uint64_t zip64_from = 0xffffffff) : file_(file), zip64_from_(zip64_from) {}

  absl::Status add(std::string_view name, const void* data, size_t size);
  absl::Status add(std::string_view name, std::string_view bytes) { return add(name, bytes.data(), bytes.size()); }
  /// Writes the directory. No entry may be added after it.
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
