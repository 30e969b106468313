#include "core/files/system_calls.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string_view>

namespace trainkit {
namespace {

template <class T>
T or_errno(T result) {
  return result < 0 ? static_cast<T>(-errno) : result;
}

}  // namespace

SystemCalls& SystemCalls::kernel() {
  static SystemCalls calls;
  return calls;
}

int SystemCalls::openat(int directory, const char* name, int flags, mode_t mode) {
  return or_errno(::openat(directory, name, flags, mode));
}
int SystemCalls::close(int descriptor) { return or_errno(::close(descriptor)); }
ssize_t SystemCalls::pread(int descriptor, void* data, size_t size, off_t offset) {
  return or_errno(::pread(descriptor, data, size, offset));
}
ssize_t SystemCalls::pwrite(int descriptor, const void* data, size_t size, off_t offset) {
  return or_errno(::pwrite(descriptor, data, size, offset));
}
int SystemCalls::fsync(int descriptor) { return or_errno(::fsync(descriptor)); }
int SystemCalls::fstat(int descriptor, struct stat* result) { return or_errno(::fstat(descriptor, result)); }
int SystemCalls::fstatat(int directory, const char* name, struct stat* result) {
  return or_errno(::fstatat(directory, name, result, AT_SYMLINK_NOFOLLOW));
}
int SystemCalls::mkdirat(int directory, const char* name, mode_t mode) {
  return or_errno(::mkdirat(directory, name, mode));
}
int SystemCalls::unlinkat(int directory, const char* name, int flags) {
  return or_errno(::unlinkat(directory, name, flags));
}
int SystemCalls::renameat2(int directory, const char* from, const char* to, unsigned flags) {
  // renameat does the same without flags and exists on systems that lack renameat2.
  return flags == 0 ? or_errno(::renameat(directory, from, directory, to))
                    : or_errno(::renameat2(directory, from, directory, to, flags));
}
int SystemCalls::fstatvfs(int descriptor, struct statvfs* result) { return or_errno(::fstatvfs(descriptor, result)); }
int SystemCalls::try_lock(int descriptor) { return or_errno(::flock(descriptor, LOCK_EX | LOCK_NB)); }

int SystemCalls::list(int directory, std::vector<std::string>& names) {
  // Open a separate descriptor: fdopendir takes ownership and moves the file position.
  const int copy = ::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (copy < 0) return -errno;
  DIR* stream = ::fdopendir(copy);
  if (!stream) {
    const int error = errno;
    ::close(copy);
    return -error;
  }
  names.clear();
  errno = 0;
  while (const dirent* entry = ::readdir(stream)) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
    errno = 0;
  }
  const int error = errno;
  ::closedir(stream);
  return -error;
}

}  // namespace trainkit
