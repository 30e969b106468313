#pragma once
/// Files read through memory, without a copy and without fear of a file that shrinks.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace trainkit {

/// A whole file mapped read-only.
///
/// A file that another process cuts short while it is mapped would end the process with SIGBUS at the next read. Here
/// the pages that are gone read as zeros and the map is marked as damaged: whoever has read from it asks check() before
/// it uses what it read.
///
/// The first map installs a handler for SIGBUS that is kept for the life of the process. A fault outside our maps goes
/// to the handler that was there before. A program that installs a handler of its own later must chain to ours.
///
/// Threads: everything may be called from any thread.
class MappedFile {
 public:
  /// Maps `path`, which must be an ordinary file; an empty one gives an empty span. Errors, exit code 4:
  ///   data.missing     there is no such file (kNotFound)
  ///   data.unreadable  no permission, a folder, a pipe, a device, or the system refuses the map
  static absl::StatusOr<std::shared_ptr<const MappedFile>> open(const std::string& path);

  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  /// Opens the same file for a library that wants a path, whatever was put in its place since. Valid as long as this
  /// object lives, in this process.
  std::string same_file_path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }
  /// The bytes, valid as long as this object lives.
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

  /// True once a read met a page that was gone. One load; cheap enough for every batch.
  bool damaged() const;

  /// data.damaged (kDataLoss, exit code 4) if the file is shorter than it was or a read met a page that was gone. One
  /// system call: it also sees the rest of the last page, which reads as zeros without a fault.
  absl::Status check() const;

 private:
  MappedFile(std::string path, int descriptor, const std::byte* data, size_t size);

  std::string path_;
  int descriptor_;
  const std::byte* data_;
  size_t size_;
  struct Guard;
  Guard* guard_ = nullptr;  // the entry in the table that the signal handler reads
};

}  // namespace trainkit
