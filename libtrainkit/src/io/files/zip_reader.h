#pragma once
/// Reads the directory of a zip archive and checks every bound. Accepts only entries one after the other from the start
/// of the file, then one directory, then the end record, as torch.save and NumPy write them.

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trainkit/core/error.h"

namespace trainkit::detail {

struct ZipEntry {
  std::string name;
  uint64_t offset = 0;  ///< Offset of the data in the file.
  uint64_t size = 0;    ///< Of the data, unpacked.
  uint32_t crc = 0;
  uint64_t stored = 0;    ///< Bytes in the file; `size` unless deflated.
  bool deflated = false;  ///< The data is a raw deflate stream.
};

/// The bytes of an archive, what it may contain, and how its errors are named.
struct ZipFile {
  std::string path;
  uint64_t size = 0;
  /// Reads `count` bytes from `at`; the range lies within the file.
  std::function<absl::Status(uint64_t at, void* out, size_t count)> read;
  ExitCode exit_code = ExitCode::kData;
  std::string error_id;
  std::string writer;  ///< The program that writes such files, for messages.
  bool may_deflate = false;
};

/// Returns the entries in the order of their data; see Note [Zip archives without gaps]. Errors `error_id`: overlaps,
/// gaps, bytes before the first entry or after the end record, a second end record, encrypted entries, entries
/// compressed in another way than allowed, names that are duplicates or leave the folder.
absl::StatusOr<std::vector<ZipEntry>> read_zip_directory(const ZipFile& file);

/// Extends `crc`, a zlib CRC-32, by `size` bytes.
uint32_t crc32(uint32_t crc, const void* data, size_t size);

}  // namespace trainkit::detail
