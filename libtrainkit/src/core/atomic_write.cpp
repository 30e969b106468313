#include <filesystem>
#include <system_error>

#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"

namespace trainkit {

// Note [Atomic file replacement] Each fsync is needed. Without the one of the file, a crash can leave the new name with
// incomplete contents. Without the one of the directory, the rename itself can be lost. A failure of the last fsync
// leaves the new file in place.

/// A rename would replace a device or a pipe by a file: /dev/null, or /dev/stdout, a link.
static absl::Status check_is_replaceable(const Directory& directory, const std::string& name) {
  const auto type = directory.type_of(name);
  if (!type.ok() || *type == EntryType::kFile || *type == EntryType::kDirectory) return absl::OkStatus();
  std::error_code failed;
  const auto target = std::filesystem::status(directory.path() + "/" + name, failed).type();
  const bool replaces =
      target == std::filesystem::file_type::regular || target == std::filesystem::file_type::not_found;
  if (replaces) return absl::OkStatus();
  return to_status({.exit_code = ExitCode::kStorage,
                    .id = "storage.type",
                    .where = directory.path() + "/" + name,
                    .problem = "is not a regular file"},
                   absl::StatusCode::kFailedPrecondition);
}

absl::Status write_file_atomically(const Directory& directory, const std::string& name,
                                   const std::function<absl::Status(WritableFile&)>& write) {
  TRAINKIT_RETURN_IF_ERROR(check_is_replaceable(directory, name));
  const std::string temporary = temporary_name(name);
  const auto write_and_rename = [&]() -> absl::Status {
    TRAINKIT_ASSIGN_OR_RETURN(WritableFile file, directory.create_file(temporary));
    TRAINKIT_RETURN_IF_ERROR(write(file));
    TRAINKIT_RETURN_IF_ERROR(file.sync());
    TRAINKIT_RETURN_IF_ERROR(file.close());
    return directory.rename(temporary, name);
  };
  if (const absl::Status status = write_and_rename(); !status.ok()) {
    directory.remove_tree(temporary).IgnoreError();
    return status;
  }
  return directory.sync();
}

absl::Status write_file_atomically(const Directory& directory, const std::string& name, std::string_view bytes) {
  return write_file_atomically(directory, name, [&](WritableFile& file) { return file.append(bytes); });
}

absl::Status write_file_atomically(const Fs& fs, const std::string& path, std::string_view bytes) {
  const auto [parent, name] = split_path(path);
  TRAINKIT_ASSIGN_OR_RETURN(const Directory directory, fs.open_directory(parent));
  return write_file_atomically(directory, name, bytes);
}

}  // namespace trainkit
