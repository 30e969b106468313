#pragma once
/// The file layer. All that the library writes goes through here, and all that it must trust when it reads it back.
///
/// Its calls block. Errors are Errors of exit code 6 that name the path, with the absl code that fits errno: kNotFound,
/// kAlreadyExists, kPermissionDenied, kResourceExhausted (no space, no quota) and so on. A reader that blames the file
/// rather than the disk changes the exit code with `reclassify`.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trainkit/core/digest.h"
#include "trainkit/core/error.h"

namespace trainkit {

class SystemCalls;

/// `status` with another exit code and id; code, path and text are kept. OK stays OK.
absl::Status reclassify(const absl::Status& status, ExitCode exit_code, std::string_view id);

/// A number of bytes for a message: "1,234,567 bytes (1.2 MiB)".
std::string describe_bytes(int64_t bytes);

namespace detail {

/// A file descriptor that closes itself.
class Descriptor {
 public:
  Descriptor(SystemCalls& calls, int number) : calls_(&calls), number_(number) {}
  Descriptor(Descriptor&& other) noexcept : calls_(other.calls_), number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();
  SystemCalls& calls() const { return *calls_; }
  int number() const { return number_; }
  /// Closes now; 0 or -errno.
  int close();

 private:
  SystemCalls* calls_;
  int number_;
};

}  // namespace detail

/// A new file that is written from its start to its end. One thread at a time.
class WritableFile {
 public:
  /// Writes all of it; an interrupted or short write goes on where it stopped.
  absl::Status append(const void* data, size_t size);
  absl::Status append(std::string_view bytes) { return append(bytes.data(), bytes.size()); }
  /// Returns when the contents are on the disk (fsync). After a failure the contents are unknown and every later call
  /// fails too: Linux forgets what it could not write, and a second fsync would claim success.
  absl::Status sync();
  /// Closes. A file that goes out of scope is closed as well, its errors unseen.
  absl::Status close();

  int64_t size_bytes() const { return size_bytes_; }
  const std::string& path() const { return path_; }
  /// Digest of what was written so far.
  const Digest& digest() const { return digest_; }

 private:
  friend class Directory;
  WritableFile(detail::Descriptor descriptor, std::string path)
      : descriptor_(std::move(descriptor)), path_(std::move(path)) {}
  detail::Descriptor descriptor_;
  std::string path_;
  int64_t size_bytes_ = 0;
  Digest digest_;
  int sync_error_ = 0;
};

/// A regular file opened for reading. Any number of threads.
class ReadableFile {
 public:
  /// Fills `data` with `size` bytes from `offset`. kDataLoss if the file ends before.
  absl::Status read_at(int64_t offset, void* data, size_t size) const;
  /// Size when it was opened.
  int64_t size_bytes() const { return size_bytes_; }
  const std::string& path() const { return path_; }

 private:
  friend class Directory;
  friend class Fs;
  ReadableFile(detail::Descriptor descriptor, std::string path, int64_t size_bytes)
      : descriptor_(std::move(descriptor)), path_(std::move(path)), size_bytes_(size_bytes) {}
  detail::Descriptor descriptor_;
  std::string path_;
  int64_t size_bytes_;
};

/// Digest of a whole file, read in pieces of 1 MiB.
absl::StatusOr<std::string> digest_of(const ReadableFile& file);

enum class EntryType { kFile, kDirectory, kLink, kOther };

/// An open directory. Names are single components below it: "/", ".." and "." are errors, and a symbolic link is never
/// followed, so that nothing outside is reached even while somebody else swaps the entries. The directory stays the
/// same one if its path is renamed. Any number of threads.
class Directory {
 public:
  /// A new, empty file (O_CREAT | O_EXCL, mode 0600). kAlreadyExists if anything has that name.
  absl::StatusOr<WritableFile> create_file(const std::string& name) const;
  /// A regular file; kFailedPrecondition for a link and whatever else is no file.
  absl::StatusOr<ReadableFile> open_file(const std::string& name) const;
  absl::StatusOr<std::string> read_file(const std::string& name, int64_t max_bytes) const;
  /// A new directory, mode 0700.
  absl::Status create_directory(const std::string& name) const;
  absl::StatusOr<Directory> open_directory(const std::string& name) const;
  /// Renames inside this directory, atomically; a file of the new name is replaced.
  absl::Status rename(const std::string& from, const std::string& to) const;
  /// Swaps two entries atomically. kInvalidArgument or kUnimplemented where the file system cannot.
  absl::Status exchange(const std::string& a, const std::string& b) const;
  /// Removes a file or a link.
  absl::Status remove_file(const std::string& name) const;
  /// Removes an entry and all below it, without following links. OK if there is none.
  absl::Status remove_tree(const std::string& name) const;
  /// The entry's type; kNotFound if there is none.
  absl::StatusOr<EntryType> type_of(const std::string& name) const;
  /// Names of all entries, sorted.
  absl::StatusOr<std::vector<std::string>> list() const;
  /// Returns when names made, renamed and removed here so far are on the disk (fsync of the directory).
  absl::Status sync() const;
  /// Bytes that this user may still write to this file system.
  absl::StatusOr<int64_t> free_bytes() const;
  /// True if users other than the owner and the group may make and remove entries.
  absl::StatusOr<bool> writable_by_others() const;
  /// Locks the directory against other holders until this object is destroyed or the process ends. kUnavailable if it
  /// is locked already, by this process too; OK without a lock on file systems that have none.
  absl::Status try_lock() const;

  const std::string& path() const { return path_; }

 private:
  friend class Fs;
  Directory(detail::Descriptor descriptor, std::string path)
      : descriptor_(std::move(descriptor)), path_(std::move(path)) {}
  absl::StatusOr<detail::Descriptor> open(const std::string& name, int flags, const char* action) const;
  absl::Status remove_tree(const std::string& name, int depth) const;
  detail::Descriptor descriptor_;
  std::string path_;
};

/// Opens directories and files by path. Links in the path that a user gives are followed.
class Fs {
 public:
  explicit Fs(SystemCalls& calls) : calls_(&calls) {}
  /// The machine's file system.
  static Fs& posix();

  absl::StatusOr<Directory> open_directory(const std::string& path) const;
  /// Makes what is missing of the path (mode 0700), durably, and opens it.
  absl::StatusOr<Directory> create_directories(const std::string& path) const;
  /// A regular file; never blocks on a pipe.
  absl::StatusOr<ReadableFile> open_file(const std::string& path) const;
  /// The contents; kOutOfRange if there are more than `max_bytes`.
  absl::StatusOr<std::string> read_file(const std::string& path, int64_t max_bytes) const;
  bool exists(const std::string& path) const;

 private:
  SystemCalls* calls_;
};

/// Replaces the file `name` by what `write` appends: a temporary file beside it, fsync, rename, fsync of the directory.
/// After a crash at any moment the old contents are there or the new, whole. The temporary file is removed on an error.
absl::Status write_file_atomically(const Directory& directory, const std::string& name,
                                   const std::function<absl::Status(WritableFile&)>& write);
absl::Status write_file_atomically(const Directory& directory, const std::string& name, std::string_view bytes);
absl::Status write_file_atomically(const Fs& fs, const std::string& path, std::string_view bytes);

/// Splits "a/b/c" into {"a/b", "c"}, "c" into {".", "c"}.
std::pair<std::string, std::string> split_path(const std::string& path);

/// Prefix of every temporary name that this library makes. What is left of it after a crash may be deleted.
inline constexpr std::string_view kTemporaryPrefix = ".tmp-";
/// A name that nothing else has: kTemporaryPrefix, `name` and 16 random hexadecimal digits.
std::string temporary_name(std::string_view name);

}  // namespace trainkit
