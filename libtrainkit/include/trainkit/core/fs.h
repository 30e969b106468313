#pragma once
/// The file layer. The library writes all its files, and reads all files that it must trust, through this layer.
///
/// Calls block. Errors are Errors of exit code 6 that name the path, with the absl code that fits errno: kNotFound,
/// kAlreadyExists, kPermissionDenied, kResourceExhausted (no space, no quota) and so on. A reader for which the file is
/// at fault, not the disk, changes the exit code with `reclassify`.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trainkit/core/error.h"

namespace trainkit {

// ---- A fast digest that detects corruption.

/// Computes XXH3 with 128 bits (https://xxhash.com) incrementally. Detects flipped, lost and swapped bytes at memory
/// bandwidth. Not collision-resistant: it does not protect against files that are made on purpose to have one digest.
class Digest {
 public:
  Digest();
  Digest(Digest&&) noexcept;
  Digest& operator=(Digest&&) noexcept;
  ~Digest();

  void update(const void* data, size_t size);
  /// Returns 32 hexadecimal digits, the canonical (big-endian) form that `xxhsum -H2` prints. update() may follow.
  std::string hex() const;

  /// Returns the digest of `bytes`.
  static std::string of(std::string_view bytes);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

class SystemCalls;

/// Formats a byte count for messages: "1,234,567 bytes (1.2 MiB)".
std::string describe_bytes(int64_t bytes);

namespace detail {

/// Owns a file descriptor and closes it on destruction.
class Descriptor {
 public:
  Descriptor(SystemCalls& calls, int number) : calls_(&calls), number_(number) {}
  Descriptor(Descriptor&& other) noexcept : calls_(other.calls_), number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();
  SystemCalls& calls() const { return *calls_; }
  int number() const { return number_; }
  /// Closes the descriptor now. Returns 0 or -errno.
  int close();

 private:
  SystemCalls* calls_;
  int number_;
};

}  // namespace detail

/// Writes a new file sequentially, or any ranges of a file. One thread at a time.
class WritableFile {
 public:
  /// Writes all bytes after those of the last append; continues after an interrupted or short write.
  absl::Status append(const void* data, size_t size);
  absl::Status append(std::string_view bytes) { return append(bytes.data(), bytes.size()); }
  /// Writes all bytes at `offset`, and extends the file if it ends before. Counts for neither size_bytes() nor
  /// digest().
  absl::Status write_at(int64_t offset, const void* data, size_t size);
  /// Flushes the contents to the disk (fsync) and blocks until they are there. After a failure the contents are unknown
  /// and every later call fails too: Linux drops pages that it could not write, and a second fsync would report
  /// success.
  absl::Status sync();
  /// Closes the file. The destructor closes it too, but ignores errors.
  absl::Status close();

  /// Number of appended bytes.
  int64_t size_bytes() const { return size_bytes_; }
  const std::string& path() const { return path_; }
  /// Digest of the appended bytes.
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

/// A file that is written later, perhaps in another thread.
struct PendingFile {
  std::string name;
  /// Number of bytes that `write` appends.
  int64_t bytes = 0;
  /// Appends the contents to a new file. Called at most once.
  std::function<absl::Status(WritableFile& file)> write;
};

/// Reads a regular file. Callable from any number of threads.
class ReadableFile {
 public:
  /// Reads `size` bytes from `offset` into `data`. Returns kDataLoss if the file ends before.
  absl::Status read_at(int64_t offset, void* data, size_t size) const;
  /// Size in bytes when the file was opened.
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

/// Returns the digest of a whole file, reading 1 MiB at a time.
absl::StatusOr<std::string> digest_of(const ReadableFile& file);

enum class EntryType { kFile, kDirectory, kLink, kOther };

/// An open directory. Names are single components: "/", ".." and "." are errors. Symbolic links are never followed, so
/// no operation leaves the directory even if another process swaps the entries. The object refers to the same directory
/// after its path is renamed. Callable from any number of threads.
class Directory {
 public:
  /// Creates a new, empty file (O_CREAT | O_EXCL, mode 0664 less the umask). kAlreadyExists if the name is taken.
  absl::StatusOr<WritableFile> create_file(const std::string& name) const;
  /// Opens an existing regular file for write_at(); keeps its contents. Returns kFailedPrecondition for a link, also
  /// for a file with several hard links, or any other type of entry.
  absl::StatusOr<WritableFile> open_for_writing(const std::string& name) const;
  /// Opens a regular file. Returns kFailedPrecondition for a link or any other type of entry.
  absl::StatusOr<ReadableFile> open_file(const std::string& name) const;
  absl::StatusOr<std::string> read_file(const std::string& name, int64_t max_bytes) const;
  /// Creates a directory with the mode 0775 less the umask.
  absl::Status create_directory(const std::string& name) const;
  absl::StatusOr<Directory> open_directory(const std::string& name) const;
  /// Renames an entry in this directory atomically; replaces an existing file. Returns kFailedPrecondition rather than
  /// replace a device, a pipe, or a link to one.
  absl::Status rename(const std::string& from, const std::string& to) const;
  /// Swaps two entries atomically. Returns kInvalidArgument or kUnimplemented if the file system does not support it.
  absl::Status exchange(const std::string& a, const std::string& b) const;
  /// Removes a file or a link.
  absl::Status remove_file(const std::string& name) const;
  /// Removes an entry and everything below it, without following links. Returns OK if it does not exist.
  absl::Status remove_tree(const std::string& name) const;
  /// Returns the entry's type, or kNotFound.
  absl::StatusOr<EntryType> type_of(const std::string& name) const;
  /// Returns the names of all entries, sorted.
  absl::StatusOr<std::vector<std::string>> list() const;
  /// Flushes the creations, renames and removals in this directory to the disk (fsync of the directory).
  absl::Status sync() const;
  /// Number of bytes that this user may still write to the file system.
  absl::StatusOr<int64_t> free_bytes() const;
  /// Returns true if users other than the owner and the group may create and remove entries.
  absl::StatusOr<bool> writable_by_others() const;
  /// Locks the directory until this object is destroyed or the process ends. Returns kUnavailable if it is already
  /// locked, also by this process. Returns OK without a lock on file systems that do not support locks.
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

/// Opens directories and files by path. Follows symbolic links in the path, which the user gives.
class Fs {
 public:
  explicit Fs(SystemCalls& calls) : calls_(&calls) {}
  /// Returns the file system of this machine.
  static Fs& posix();

  absl::StatusOr<Directory> open_directory(const std::string& path) const;
  /// Creates the missing directories of the path (create_directory), flushes them to the disk and opens the last one.
  absl::StatusOr<Directory> create_directories(const std::string& path) const;
  /// Opens a regular file. Never blocks on a pipe.
  absl::StatusOr<ReadableFile> open_file(const std::string& path) const;
  /// Returns the file's contents; kOutOfRange if there are more than `max_bytes` bytes.
  absl::StatusOr<std::string> read_file(const std::string& path, int64_t max_bytes) const;
  bool exists(const std::string& path) const;

 private:
  SystemCalls* calls_;
};

/// Replaces file `name` atomically by the output of `write`: writes a temporary file in the same directory, calls
/// fsync, renames it, and calls fsync on the directory. After a crash at any moment, the file has either the old or the
/// new contents, complete. On an error or an exception of `write` the temporary file is removed.
absl::Status write_file_atomically(const Directory& directory, const std::string& name,
                                   const std::function<absl::Status(WritableFile&)>& write);
absl::Status write_file_atomically(const Directory& directory, const std::string& name, std::string_view bytes);
absl::Status write_file_atomically(const Fs& fs, const std::string& path, std::string_view bytes);

/// Refuses to replace a file, unless it is empty or begins with one of `begins`, as earlier outputs of the program do:
/// cli.value (exit code 2). `flag` names the file and `kind` says what it should be ("a report"). OK if there is no
/// file or `path` is empty.
absl::Status check_replaced(const std::string& flag, const std::string& path, const std::vector<std::string>& begins,
                            const std::string& kind);

/// Splits "a/b/c" into {"a/b", "c"}, and "c" into {".", "c"}.
std::pair<std::string, std::string> split_path(const std::string& path);

/// Prefix of every temporary name that this library creates. Such entries that are left after a crash may be deleted.
inline constexpr std::string_view kTemporaryPrefix = ".tmp-";
/// Returns a unique name: kTemporaryPrefix, `name` and 16 random hexadecimal digits.
std::string temporary_name(std::string_view name);

/// A folder that is removed with its contents at the end of the object.
class TemporaryFolder {
 public:
  /// Creates a folder in `parent`, with a temporary_name(). Without `parent`: in the folder of temporary files
  /// (TMPDIR), for this user only. Errors, exit code 6: those of Directory; storage.temporary.
  static absl::StatusOr<TemporaryFolder> create(const std::string& parent = "");
  TemporaryFolder(TemporaryFolder&& other) noexcept { path_.swap(other.path_); }
  TemporaryFolder& operator=(TemporaryFolder&& other) noexcept { return path_.swap(other.path_), *this; }
  ~TemporaryFolder();

  const std::string& path() const { return path_; }
  /// Leaves the folder where it is.
  void keep() { path_.clear(); }

 private:
  explicit TemporaryFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;  // empty: nothing to remove
};

}  // namespace trainkit
