#pragma once
/// The table of contents of a zip archive, read with every bound checked. Only what torch.save writes is accepted:
/// entries that are stored, one after the other from the start of the file, then one directory, then the end.

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "trainkit/core/fs.h"

namespace trainkit::detail {

struct ZipEntry {
  std::string name;
  uint64_t offset = 0;  ///< Of the data, in the file.
  uint64_t size = 0;
  uint32_t crc = 0;
};

/// The entries in the order of the data. What lies in the file lies in exactly one of them (or is a header): overlaps,
/// gaps, bytes before the first or after the end record, a second end record, compressed or encrypted entries, names
/// that stand twice or leave the folder are errors of exit code 5.
absl::StatusOr<std::vector<ZipEntry>> read_zip_directory(const ReadableFile& file);

/// zlib's CRC-32 of more bytes after those whose CRC is `crc`.
uint32_t crc32(uint32_t crc, const void* data, size_t size);

}  // namespace trainkit::detail
