#pragma once
/// Maps files into memory and survives a file that another process truncates.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace trainkit {

/// Maps a whole file read-only.
///
/// Reading past the end of a truncated mapping raises SIGBUS, which would end the process. Here the missing pages read
/// as zeros and the mapping is marked as damaged. Call check() after reading and before using the data.
///
/// The first mapping installs a SIGBUS handler for the rest of the process. Faults outside these mappings go to the
/// handler that was installed before. A program that installs its own SIGBUS handler later must chain to this one.
///
/// Thread-safe.
class MappedFile {
 public:
  /// Maps `path`, which must be a regular file. An empty file gives an empty span. Errors, exit code 4:
  ///   data.missing     the file does not exist (kNotFound)
  ///   data.unreadable  no permission, a folder, a pipe, a device, or the system refuses the map
  static absl::StatusOr<std::shared_ptr<const MappedFile>> open(const std::string& path);

  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  /// Path for a library that opens files by name. It refers to the mapped file even if `path` was replaced. Valid in
  /// this process while this object lives.
  std::string same_file_path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }
  /// The mapped bytes. Valid while this object lives.
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

  /// Drops the pages of the file from this process's memory. They are read again when they are used again; the system
  /// may keep them in its cache. For readers of pieces of a file that is larger than memory. Does nothing for a file
  /// below 1 MiB.
  void release() const;

  /// Whether a read hit a missing page. One atomic load: cheap enough for every batch.
  bool damaged() const;

  /// Returns data.damaged (kDataLoss, exit code 4) if the file became shorter or a read hit a missing page.
  ///
  /// Makes one system call, because a file truncated within its last page reads as zeros there without a fault.
  absl::Status check() const;

 private:
  MappedFile(std::string path, int descriptor, const std::byte* data, size_t size);

  std::string path_;
  int descriptor_;
  const std::byte* data_;
  size_t size_;
  struct Guard;
  Guard* guard_ = nullptr;  // entry in the list read by the signal handler
};

}  // namespace trainkit
