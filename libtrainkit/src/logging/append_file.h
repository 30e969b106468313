#pragma once
/// Appends whole records to a file, even if the disk is full for a while.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <memory>
#include <string>
#include <string_view>

namespace trainkit::detail {

/// Appends records to a file; see Note [Appending whole records]. A record that cannot be written completely is removed
/// from the file, kept in memory (up to 4 MiB in total) and retried by the next append() or flush().
class AppendFile {
 public:
  /// Opens or creates `path` for appending (O_APPEND; the mode is 0664 less the umask). Exit code 6 if that fails, or
  /// if it is a pipe or a socket, which could wait for ever.
  static absl::StatusOr<std::unique_ptr<AppendFile>> open(const std::string& path);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  void append(std::string_view record);
  /// Writes everything to the disk (fdatasync), or returns the error of the first record that could not be written.
  absl::Status flush();
  /// Truncates the file to `size` bytes and discards pending records.
  absl::Status truncate(int64_t size);

  const std::string& path() const { return path_; }

 private:
  AppendFile(std::string path, int fd, int64_t size) : path_(std::move(path)), fd_(fd), size_(size) {}
  void write_pending();

  std::string path_;
  int fd_;
  int64_t size_;       // bytes of complete records
  bool torn_ = false;  // a partial record follows them
  std::string pending_;
  int error_ = 0;
  int64_t lost_ = 0;
};

/// Returns the Status of a failed system call on `path`: exit code 6, with a remedy.
absl::Status storage_error(const std::string& path, std::string_view what, int error);

}  // namespace trainkit::detail
