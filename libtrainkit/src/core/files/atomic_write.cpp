#include "core/files/new_files.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"

namespace trainkit {

// Note [Atomic file replacement] Each fsync is needed. Without the one of the file, a crash can leave the new name with
// incomplete contents. Without the one of the directory, the rename itself can be lost. A failure of the last fsync
// leaves the new file in place.

absl::Status write_file_atomically(const Directory& directory, const std::string& name,
                                   const std::function<absl::Status(WritableFile&)>& write) {
  const std::string temporary = temporary_name(name);
  const auto write_and_rename = [&]() -> absl::Status {
    TRAINKIT_ASSIGN_OR_RETURN(WritableFile file, directory.create_file(temporary));
    TRAINKIT_RETURN_IF_ERROR(write(file));
    TRAINKIT_RETURN_IF_ERROR(file.sync());
    TRAINKIT_RETURN_IF_ERROR(file.close());
    detail::report_written_file(directory.path() + "/" + name, file.digest().hex());
    return directory.rename(temporary, name);
  };
  absl::Status status;
  try {
    status = write_and_rename();
  } catch (...) {
    directory.remove_tree(temporary).IgnoreError();
    throw;
  }
  if (status.ok()) return directory.sync();
  directory.remove_tree(temporary).IgnoreError();
  return status;
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
