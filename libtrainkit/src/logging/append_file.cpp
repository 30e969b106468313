#include "logging/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/files/new_files.h"
#include "core/files/unique_descriptor.h"
#include "trainkit/core/error.h"

namespace trainkit::detail {

// Note [Appending whole records]
//
// A record must be in the file completely or not at all, even on a full disk. The file is opened with O_APPEND, and
// size_ is the number of bytes up to the end of the last complete record.
//   append() adds the record to pending_ and tries to write all of pending_.
//   If a write fails after writing a part, the file is truncated to size_. pending_ stays complete, and the next
//   append() or flush() retries it in order. If truncating fails too, that is retried first (torn_).
//   pending_ is limited to kMaxPending. Later records are counted in lost_ and reported once by flush().
// A killed process can lose only records that are not yet written. The write of a record is one system call, so the
// kill does not split it.

namespace {
constexpr size_t kMaxPending = 4 << 20;
}

absl::Status storage_error(const std::string& path, std::string_view what, int error) {
  std::string hint;
  if (error == ENOSPC || error == EDQUOT) hint = "free some space or choose another --output_dir";
  if (error == EACCES || error == EROFS || error == EPERM) hint = "choose an --output_dir that you may write to";
  return to_status({.exit_code = ExitCode::kStorage,
                    .id = "log.write",
                    .where = path,
                    .problem = std::string(what) + ": " + std::strerror(error),
                    .hint = hint},
                   error == ENOENT ? absl::StatusCode::kNotFound : absl::StatusCode::kAborted);
}

absl::StatusOr<std::unique_ptr<AppendFile>> AppendFile::open(const std::string& path) {
  // O_NONBLOCK: opening a pipe would wait for a reader.
  UniqueDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, kNewFileMode));
  struct stat info;
  const bool is_pipe = file.get() < 0 && errno == ENXIO;  // without a reader, or a socket
  if (!is_pipe && (file.get() < 0 || ::fstat(file.get(), &info) != 0)) {
    return storage_error(path, "cannot open for writing", errno);
  }
  // Only records of a file can be removed when a run resumes. A device, such as /dev/full, does not wait.
  if (is_pipe || !(S_ISREG(info.st_mode) || S_ISCHR(info.st_mode))) {
    return to_status({.exit_code = ExitCode::kStorage,
                      .id = "log.write",
                      .where = path,
                      .problem = "is a pipe or a socket, expected a file",
                      .hint = "remove it, or choose another folder"},
                     absl::StatusCode::kFailedPrecondition);
  }
  return std::unique_ptr<AppendFile>(new AppendFile(path, file.release(), info.st_size));
}

AppendFile::~AppendFile() {
  write_pending();
  ::close(fd_);
}

void AppendFile::append(std::string_view record) {
  if (pending_.size() + record.size() > kMaxPending) {
    ++lost_;
    return;
  }
  pending_ += record;
  write_pending();
}

void AppendFile::write_pending() {
  size_t done = 0;
  torn_ = torn_ && ::ftruncate(fd_, size_) != 0;
  if (torn_) {
    error_ = errno;
    return;
  }
  while (done < pending_.size()) {
    const ssize_t count = ::write(fd_, pending_.data() + done, pending_.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      error_ = count < 0 ? errno : EIO;
      torn_ = done > 0 && ::ftruncate(fd_, size_) != 0;
      return;
    }
    done += static_cast<size_t>(count);
  }
  size_ += static_cast<int64_t>(done);
  pending_.clear();
  error_ = 0;
}

absl::Status AppendFile::flush() {
  write_pending();
  if (error_ != 0) return storage_error(path_, "cannot write", error_);
  // EINVAL, EROFS: a pipe or a device, which cannot be synchronised.
  if (::fdatasync(fd_) != 0 && errno != EINVAL && errno != EROFS)
    return storage_error(path_, "cannot synchronise", errno);
  if (lost_ > 0) {
    return to_status({.exit_code = ExitCode::kStorage,
                      .id = "log.lost",
                      .where = path_,
                      .problem = "records were lost because the disk rejected writes",
                      .got = std::to_string(std::exchange(lost_, 0)) + " records"});
  }
  return absl::OkStatus();
}

absl::Status AppendFile::truncate(int64_t size) {
  pending_.clear();
  error_ = 0;
  if (::ftruncate(fd_, size) != 0) return storage_error(path_, "cannot truncate to the last complete record", errno);
  size_ = size;
  torn_ = false;
  return absl::OkStatus();
}

}  // namespace trainkit::detail
