#pragma once
/// Reads the directory of a zip archive and checks every bound. Accepts only archives as written by torch.save: stored
/// entries one after the other from the start of the file, then one directory, then the end record.

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "trainkit/core/fs.h"

namespace trainkit::detail {

struct ZipEntry {
  std::string name;
  uint64_t offset = 0;  ///< Offset of the data in the file.
  uint64_t size = 0;
  uint32_t crc = 0;
};

/// Returns the entries in the order of their data; see Note [Zip archives without gaps]. Errors of exit code 5:
/// overlaps, gaps, bytes before the first entry or after the end record, a second end record, compressed or encrypted
/// entries, names that are duplicates or leave the folder.
absl::StatusOr<std::vector<ZipEntry>> read_zip_directory(const ReadableFile& file);

/// Extends `crc`, a zlib CRC-32, by `size` bytes.
uint32_t crc32(uint32_t crc, const void* data, size_t size);

}  // namespace trainkit::detail
