#pragma once
/// A file that only grows, by whole records, whatever the disk does.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <memory>
#include <string>
#include <string_view>

namespace trainkit::detail {

/// Appends records. A record that could not be written whole is taken back from the file, kept (up to 4 MiB of them)
/// and written by the next append() or flush() that succeeds; so a disk that was full for a while costs nothing.
class AppendFile {
 public:
  /// Opens or creates `path` for appending (O_APPEND, mode 0644). Exit code 6 if that fails.
  static absl::StatusOr<std::unique_ptr<AppendFile>> open(const std::string& path);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  void append(std::string_view record);
  /// Everything to the disk (fdatasync), or the failure that kept a record from the file.
  absl::Status flush();
  /// Cuts the file to `size` bytes and forgets what was kept.
  absl::Status truncate(int64_t size);

  const std::string& path() const { return path_; }

 private:
  AppendFile(std::string path, int fd, int64_t size) : path_(std::move(path)), fd_(fd), size_(size) {}
  void write_pending();

  std::string path_;
  int fd_;
  int64_t size_;  // bytes of whole records
  std::string pending_;
  int error_ = 0;
  int64_t lost_ = 0;
};

/// The Status of a failed system call on `path`: exit code 6 and what to do about it.
absl::Status storage_error(const std::string& path, std::string_view what, int error);

/// The whole of a file. Exit code 6 if it cannot be read; kNotFound if it is not there.
absl::StatusOr<std::string> read_file(const std::string& path);

}  // namespace trainkit::detail
