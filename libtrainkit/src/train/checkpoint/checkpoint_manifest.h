#pragma once
/// Reads, writes and verifies manifest.json, the list of a checkpoint's files. docs/formats/checkpoint.md specifies the
/// format.

#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "trainkit/core/fs.h"

namespace trainkit::detail {

inline constexpr char kManifestFile[] = "manifest.json";

/// Size and digest of one file.
struct FileRecord {
  int64_t bytes = 0;
  std::string xxh3_128;
};

struct Manifest {
  int64_t step = 0;
  std::string library;  // version that wrote the checkpoint
  std::map<std::string, FileRecord> files;
};

/// Returns the text of the file, which ends with a digest of itself.
std::string manifest_to_json(const Manifest& manifest);

/// Parses the text of a manifest. Errors (exit code 5): a wrong digest, a schema of a newer library, a missing or
/// malformed member.
absl::StatusOr<Manifest> manifest_from_json(std::string_view text, const std::string& path);

/// Reads the manifest of a checkpoint's folder and verifies its files: all exist, with the listed size and digest, and
/// the folder has no others. Errors (exit code 5) name the file. See Note [Verification of a checkpoint].
absl::StatusOr<Manifest> verify_files(const Directory& checkpoint);

/// Verifies only the file `name`, without reading the others.
absl::Status verify_file(const Directory& checkpoint, const std::string& name);

/// Makes an error of exit code 5.
Error checkpoint_error(std::string id, std::string where, std::string problem);

}  // namespace trainkit::detail
