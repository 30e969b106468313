#pragma once
/// manifest.json: what a checkpoint's folder holds. The format is docs/formats/checkpoint.md.

#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "trainkit/core/fs.h"

namespace trainkit::detail {

inline constexpr char kManifestFile[] = "manifest.json";

struct FileRecord {
  int64_t bytes = 0;
  std::string xxh3_128;
};

struct Manifest {
  int64_t step = 0;
  std::string library;  // the version that wrote it
  std::map<std::string, FileRecord> files;
};

/// The file's text; it ends with a digest of itself.
std::string manifest_to_json(const Manifest& manifest);

/// Errors are of exit code 5: a digest that does not match, a schema of a newer library, a member missing or malformed.
absl::StatusOr<Manifest> manifest_from_json(std::string_view text, const std::string& path);

/// Reads the manifest of a checkpoint's folder and checks every file against it: there, no other beside it, of that
/// size and digest. Errors are of exit code 5 and name the file.
absl::StatusOr<Manifest> verify_files(const Directory& checkpoint);

/// The same for the one file `name`, the others unread.
absl::Status verify_file(const Directory& checkpoint, const std::string& name);

Error checkpoint_error(std::string id, std::string where, std::string problem);

}  // namespace trainkit::detail
