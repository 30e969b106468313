#include "trainkit/core/fs.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <limits>
#include <random>
#include <system_error>

#include "core/files/new_files.h"
#include "core/files/system_calls.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

constexpr int kMaxTreeDepth = 64;

absl::Status io_error(int error, const std::string& path, const std::string& action) {
  const bool full = error == ENOSPC || error == EDQUOT;
  return to_status({.exit_code = ExitCode::kStorage,
                    .id = full ? "storage.full" : "storage.io",
                    .where = path,
                    .problem = action + ": " + std::generic_category().message(error)},
                   error == EWOULDBLOCK ? absl::StatusCode::kUnavailable
                   : error == ELOOP     ? absl::StatusCode::kFailedPrecondition
                                        : absl::ErrnoToStatusCode(error));
}

absl::Status not_a_file(const std::string& path) {
  return to_status(
      {.exit_code = ExitCode::kStorage, .id = "storage.type", .where = path, .problem = "is not a regular file"},
      absl::StatusCode::kFailedPrecondition);
}

/// A rename would replace a device or a pipe by a file: /dev/null, or /dev/stdout, a link.
absl::Status check_is_replaceable(const Directory& directory, const std::string& name) {
  const auto type = directory.type_of(name);
  if (!type.ok() || *type == EntryType::kFile || *type == EntryType::kDirectory) return absl::OkStatus();
  const std::string path = directory.path() + "/" + name;
  std::error_code failed;
  const auto target = std::filesystem::status(path, failed).type();
  const bool replaces =
      target == std::filesystem::file_type::regular || target == std::filesystem::file_type::not_found;
  return replaces ? absl::OkStatus() : not_a_file(path);
}

/// Repeats the call while a signal interrupts it.
template <class Call>
auto retry(Call&& call) {
  auto result = call();
  while (result == -EINTR) result = call();
  return result;
}

absl::Status check_name(const Directory& directory, const std::string& name) {
  const bool component = !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
                         name.find('\0') == std::string::npos;
  if (component) return absl::OkStatus();
  return to_status({.exit_code = ExitCode::kStorage,
                    .id = "storage.name",
                    .where = directory.path(),
                    .field = "name",
                    .problem = "is not a single path component",
                    .got = name},
                   absl::StatusCode::kInvalidArgument);
}

absl::StatusOr<int64_t> regular_size(SystemCalls& calls, int descriptor, const std::string& path) {
  struct stat info {};
  if (const int error = -retry([&] { return calls.fstat(descriptor, &info); }))
    return io_error(error, path, "cannot stat");
  if (!S_ISREG(info.st_mode)) return not_a_file(path);
  return info.st_size;
}

absl::StatusOr<std::string> read_whole(const ReadableFile& file, int64_t max_bytes) {
  if (file.size_bytes() > max_bytes) {
    return to_status({.exit_code = ExitCode::kStorage,
                      .id = "storage.size",
                      .where = file.path(),
                      .problem = "is too large",
                      .got = describe_bytes(file.size_bytes()),
                      .expected = "at most " + describe_bytes(max_bytes)},
                     absl::StatusCode::kOutOfRange);
  }
  std::string bytes(static_cast<size_t>(file.size_bytes()), '\0');
  TRAINKIT_RETURN_IF_ERROR(file.read_at(0, bytes.data(), bytes.size()));
  return bytes;
}

std::string join(const std::string& directory, const std::string& name) {
  return directory.ends_with('/') ? directory + name : directory + "/" + name;
}

}  // namespace

std::string describe_bytes(int64_t bytes) {
  std::string digits = fmt::format("{}", bytes);
  const int first = bytes < 0 ? 1 : 0;
  for (int at = static_cast<int>(digits.size()) - 3; at > first; at -= 3)
    digits.insert(static_cast<size_t>(at), 1, ',');
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double scaled = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  for (; scaled >= 1024 && unit + 1 < std::size(kUnits); ++unit) scaled /= 1024;
  return bytes < 1024 ? digits + " bytes" : fmt::format("{} bytes ({:.1f} {})", digits, scaled, kUnits[unit]);
}

namespace detail {

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    close();
    calls_ = other.calls_;
    number_ = std::exchange(other.number_, -1);
  }
  return *this;
}

Descriptor::~Descriptor() { close(); }

int Descriptor::close() {
  if (number_ < 0) return 0;
  // Do not retry: Linux releases the number even if close is interrupted, so a retry could close another thread's file.
  const int result = calls_->close(std::exchange(number_, -1));
  return result == -EINTR ? 0 : result;
}

}  // namespace detail

absl::Status WritableFile::append(const void* data, size_t size) {
  digest_.update(data, size);
  TRAINKIT_RETURN_IF_ERROR(write_at(size_bytes_, data, size));
  size_bytes_ += static_cast<int64_t>(size);
  return absl::OkStatus();
}

absl::Status WritableFile::write_at(int64_t offset, const void* data, size_t size) {
  const char* bytes = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written =
        retry([&] { return descriptor_.calls().pwrite(descriptor_.number(), bytes, size, offset); });
    if (written <= 0) return io_error(written < 0 ? static_cast<int>(-written) : EIO, path_, "cannot write");
    bytes += written;
    size -= static_cast<size_t>(written);
    offset += written;
  }
  return absl::OkStatus();
}

absl::Status WritableFile::sync() {
  if (sync_error_ == 0) sync_error_ = -retry([&] { return descriptor_.calls().fsync(descriptor_.number()); });
  return sync_error_ == 0 ? absl::OkStatus() : io_error(sync_error_, path_, "cannot flush to the disk");
}

absl::Status WritableFile::close() {
  const int error = -descriptor_.close();
  return error == 0 ? absl::OkStatus() : io_error(error, path_, "cannot close");
}

absl::Status ReadableFile::read_at(int64_t offset, void* data, size_t size) const {
  char* bytes = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t read = retry([&] { return descriptor_.calls().pread(descriptor_.number(), bytes, size, offset); });
    if (read < 0) return io_error(static_cast<int>(-read), path_, "cannot read");
    if (read == 0) {
      return to_status({.exit_code = ExitCode::kStorage,
                        .id = "storage.short",
                        .where = path_,
                        .problem = fmt::format("unexpected end of file at byte {}", offset),
                        .expected = fmt::format("{} more bytes", size)},
                       absl::StatusCode::kDataLoss);
    }
    bytes += read;
    size -= static_cast<size_t>(read);
    offset += read;
  }
  return absl::OkStatus();
}

absl::StatusOr<detail::Descriptor> Directory::open(const std::string& name, int flags, const char* action) const {
  TRAINKIT_RETURN_IF_ERROR(check_name(*this, name));
  SystemCalls& calls = descriptor_.calls();
  const int number = retry([&] {
    return calls.openat(descriptor_.number(), name.c_str(), flags | O_NOFOLLOW | O_CLOEXEC, detail::kNewFileMode);
  });
  if (number < 0) return io_error(-number, join(path_, name), action);
  return detail::Descriptor(calls, number);
}

absl::StatusOr<WritableFile> Directory::create_file(const std::string& name) const {
  TRAINKIT_ASSIGN_OR_RETURN(auto descriptor, open(name, O_WRONLY | O_CREAT | O_EXCL, "cannot create"));
  return WritableFile(std::move(descriptor), join(path_, name));
}

absl::StatusOr<WritableFile> Directory::open_for_writing(const std::string& name) const {
  TRAINKIT_ASSIGN_OR_RETURN(auto descriptor, open(name, O_WRONLY | O_NONBLOCK, "cannot open"));
  const std::string path = join(path_, name);
  struct stat info {};
  const int error = -retry([&] { return descriptor.calls().fstat(descriptor.number(), &info); });
  if (error != 0) return io_error(error, path, "cannot stat");
  if (!S_ISREG(info.st_mode) || info.st_nlink > 1) return not_a_file(path);
  return WritableFile(std::move(descriptor), path);
}

absl::StatusOr<ReadableFile> Directory::open_file(const std::string& name) const {
  TRAINKIT_ASSIGN_OR_RETURN(auto descriptor, open(name, O_RDONLY | O_NONBLOCK, "cannot open"));
  const std::string path = join(path_, name);
  TRAINKIT_ASSIGN_OR_RETURN(const int64_t size, regular_size(descriptor.calls(), descriptor.number(), path));
  return ReadableFile(std::move(descriptor), path, size);
}

absl::StatusOr<std::string> Directory::read_file(const std::string& name, int64_t max_bytes) const {
  TRAINKIT_ASSIGN_OR_RETURN(const auto file, open_file(name));
  return read_whole(file, max_bytes);
}

absl::Status Directory::create_directory(const std::string& name) const {
  TRAINKIT_RETURN_IF_ERROR(check_name(*this, name));
  const int error =
      -retry([&] { return descriptor_.calls().mkdirat(descriptor_.number(), name.c_str(), detail::kNewFolderMode); });
  return error == 0 ? absl::OkStatus() : io_error(error, join(path_, name), "cannot create the directory");
}

absl::StatusOr<Directory> Directory::open_directory(const std::string& name) const {
  TRAINKIT_ASSIGN_OR_RETURN(auto descriptor, open(name, O_RDONLY | O_DIRECTORY, "cannot open the directory"));
  return Directory(std::move(descriptor), join(path_, name));
}

absl::Status Directory::rename(const std::string& from, const std::string& to) const {
  TRAINKIT_RETURN_IF_ERROR(check_name(*this, from));
  TRAINKIT_RETURN_IF_ERROR(check_name(*this, to));
  TRAINKIT_RETURN_IF_ERROR(check_is_replaceable(*this, to));
  const int error =
      -retry([&] { return descriptor_.calls().renameat2(descriptor_.number(), from.c_str(), to.c_str(), 0); });
  return error == 0 ? absl::OkStatus() : io_error(error, join(path_, from), "cannot rename to '" + to + "'");
}

absl::Status Directory::exchange(const std::string& a, const std::string& b) const {
  TRAINKIT_RETURN_IF_ERROR(check_name(*this, a));
  TRAINKIT_RETURN_IF_ERROR(check_name(*this, b));
  const int error = -retry(
      [&] { return descriptor_.calls().renameat2(descriptor_.number(), a.c_str(), b.c_str(), RENAME_EXCHANGE); });
  return error == 0 ? absl::OkStatus() : io_error(error, join(path_, a), "cannot swap with '" + b + "'");
}

absl::Status Directory::remove_file(const std::string& name) const {
  TRAINKIT_RETURN_IF_ERROR(check_name(*this, name));
  const int error = -retry([&] { return descriptor_.calls().unlinkat(descriptor_.number(), name.c_str(), 0); });
  return error == 0 ? absl::OkStatus() : io_error(error, join(path_, name), "cannot remove");
}

absl::Status Directory::remove_tree(const std::string& name) const { return remove_tree(name, 0); }

absl::Status Directory::remove_tree(const std::string& name, int depth) const {
  const auto type = type_of(name);
  if (absl::IsNotFound(type.status())) return absl::OkStatus();
  TRAINKIT_RETURN_IF_ERROR(type.status());
  if (*type != EntryType::kDirectory) return remove_file(name);
  if (depth == kMaxTreeDepth) return io_error(ELOOP, join(path_, name), "cannot remove");
  {
    // If another process has swapped the entry for a link, this open fails: nothing outside is ever listed.
    TRAINKIT_ASSIGN_OR_RETURN(const Directory child, open_directory(name));
    TRAINKIT_ASSIGN_OR_RETURN(const auto names, child.list());
    for (const std::string& entry : names) TRAINKIT_RETURN_IF_ERROR(child.remove_tree(entry, depth + 1));
  }
  const int error =
      -retry([&] { return descriptor_.calls().unlinkat(descriptor_.number(), name.c_str(), AT_REMOVEDIR); });
  return error == 0 ? absl::OkStatus() : io_error(error, join(path_, name), "cannot remove");
}

absl::StatusOr<EntryType> Directory::type_of(const std::string& name) const {
  TRAINKIT_RETURN_IF_ERROR(check_name(*this, name));
  struct stat info {};
  const int error = -retry([&] { return descriptor_.calls().fstatat(descriptor_.number(), name.c_str(), &info); });
  if (error != 0) return io_error(error, join(path_, name), "cannot stat");
  if (S_ISREG(info.st_mode)) return EntryType::kFile;
  if (S_ISDIR(info.st_mode)) return EntryType::kDirectory;
  return S_ISLNK(info.st_mode) ? EntryType::kLink : EntryType::kOther;
}

absl::StatusOr<std::vector<std::string>> Directory::list() const {
  std::vector<std::string> names;
  const int error = -retry([&] { return descriptor_.calls().list(descriptor_.number(), names); });
  if (error != 0) return io_error(error, path_, "cannot list");
  std::sort(names.begin(), names.end());
  return names;
}

absl::Status Directory::sync() const {
  const int error = -retry([&] { return descriptor_.calls().fsync(descriptor_.number()); });
  return error == 0 ? absl::OkStatus() : io_error(error, path_, "cannot flush to the disk");
}

absl::StatusOr<int64_t> Directory::free_bytes() const {
  struct statvfs info {};
  const int error = -retry([&] { return descriptor_.calls().fstatvfs(descriptor_.number(), &info); });
  if (error != 0) return io_error(error, path_, "cannot query the free space");
  const auto bytes = static_cast<unsigned __int128>(info.f_bavail) * info.f_frsize;
  return static_cast<int64_t>(std::min<unsigned __int128>(bytes, std::numeric_limits<int64_t>::max()));
}

absl::StatusOr<bool> Directory::writable_by_others() const {
  struct stat info {};
  const int error = -retry([&] { return descriptor_.calls().fstat(descriptor_.number(), &info); });
  if (error != 0) return io_error(error, path_, "cannot stat");
  return (info.st_mode & S_IWOTH) != 0 && (info.st_mode & S_ISVTX) == 0;
}

absl::Status Directory::try_lock() const {
  const int error = -retry([&] { return descriptor_.calls().try_lock(descriptor_.number()); });
  return error == EWOULDBLOCK ? io_error(error, path_, "is locked") : absl::OkStatus();
}

Fs& Fs::posix() {
  static Fs fs(SystemCalls::kernel());
  return fs;
}

absl::StatusOr<Directory> Fs::open_directory(const std::string& path) const {
  const int number =
      retry([&] { return calls_->openat(AT_FDCWD, path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0); });
  if (number < 0) return io_error(-number, path, "cannot open the directory");
  return Directory(detail::Descriptor(*calls_, number), path);
}

absl::StatusOr<Directory> Fs::create_directories(const std::string& path) const {
  auto directory = open_directory(path);
  if (!absl::IsNotFound(directory.status())) return directory;
  const auto [parent_path, name] = split_path(path);
  if (parent_path == path || name.empty()) return directory;
  TRAINKIT_ASSIGN_OR_RETURN(const Directory parent, create_directories(parent_path));
  const absl::Status made = parent.create_directory(name);
  if (!absl::IsAlreadyExists(made)) {
    TRAINKIT_RETURN_IF_ERROR(made);
    TRAINKIT_RETURN_IF_ERROR(parent.sync());
  }
  return open_directory(path);
}

absl::StatusOr<ReadableFile> Fs::open_file(const std::string& path) const {
  const int number =
      retry([&] { return calls_->openat(AT_FDCWD, path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC, 0); });
  if (number < 0) return io_error(-number, path, "cannot open");
  detail::Descriptor descriptor(*calls_, number);
  TRAINKIT_ASSIGN_OR_RETURN(const int64_t size, regular_size(*calls_, number, path));
  return ReadableFile(std::move(descriptor), path, size);
}

absl::StatusOr<std::string> Fs::read_file(const std::string& path, int64_t max_bytes) const {
  TRAINKIT_ASSIGN_OR_RETURN(const auto file, open_file(path));
  return read_whole(file, max_bytes);
}

bool Fs::exists(const std::string& path) const {
  struct stat info {};
  return retry([&] { return calls_->fstatat(AT_FDCWD, path.c_str(), &info); }) == 0;
}

std::pair<std::string, std::string> split_path(const std::string& path) {
  std::string trimmed = path;
  while (trimmed.size() > 1 && trimmed.ends_with('/')) trimmed.pop_back();
  const size_t slash = trimmed.rfind('/');
  if (slash == std::string::npos) return {".", trimmed};
  const size_t end = trimmed.find_last_not_of('/', slash);
  return {end == std::string::npos ? "/" : trimmed.substr(0, end + 1), trimmed.substr(slash + 1)};
}

std::string temporary_name(std::string_view name) {
  std::random_device random;  // not the run's generator, whose state must not change
  return fmt::format("{}{}-{:08x}{:08x}", kTemporaryPrefix, name, random(), random());
}

}  // namespace trainkit
