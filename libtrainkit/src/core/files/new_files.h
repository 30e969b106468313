#pragma once
/// Rules for files that this library creates or replaces.

#include <absl/status/status.h>
#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

namespace trainkit::detail {

/// Modes of new files and folders, from which the umask removes bits. They are never writable by every user of the
/// machine, because CheckpointStore refuses such folders.
inline constexpr mode_t kNewFileMode = 0664, kNewFolderMode = 0775;

/// Returns the error storage.foreign (exit code 2): a file that would be replaced or removed is not known to be ours.
absl::Status foreign_file(const std::string& path, const std::string& problem, const std::string& hint);

/// Returns whether a file begins with one of `begins`, or is empty. False if it cannot be read.
bool begins_with(const std::string& path, const std::vector<std::string>& begins);

/// Called with the path of a file relative to the watched folder, and the digest of its new contents, before
/// write_file_atomically() gives the file its name.
using FileWatcher = std::function<void(const std::string& name, const std::string& digest)>;

/// Watches the files that this process writes below `folder`, and no longer those below an earlier folder. The watcher
/// may write files itself. Thread-safe.
void watch_written_files(const std::string& folder, FileWatcher watcher);
/// Tells the watcher of the folder about a file. write_file_atomically() calls it.
void report_written_file(const std::string& path, const std::string& digest);

}  // namespace trainkit::detail
