#pragma once
/// The system calls that the file layer is made of, as an interface, so that tests can put a failing disk in their
/// place.

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>

#include <string>
#include <vector>

namespace trainkit {

/// Each function does what the call of the same name does, and returns its result or -errno. Interrupted calls and
/// short writes come through as they are: Fs handles them, and tests check that it does. Any thread may call.
class SystemCalls {
 public:
  virtual ~SystemCalls() = default;
  /// The kernel's own.
  static SystemCalls& kernel();

  virtual int openat(int directory, const char* name, int flags, mode_t mode);
  virtual int close(int descriptor);
  virtual ssize_t pread(int descriptor, void* data, size_t size, off_t offset);
  virtual ssize_t pwrite(int descriptor, const void* data, size_t size, off_t offset);
  virtual int fsync(int descriptor);
  virtual int fstat(int descriptor, struct stat* result);
  /// Of the entry itself, never of what a link points to.
  virtual int fstatat(int directory, const char* name, struct stat* result);
  virtual int mkdirat(int directory, const char* name, mode_t mode);
  virtual int unlinkat(int directory, const char* name, int flags);
  virtual int renameat2(int directory, const char* from, const char* to, unsigned flags);
  virtual int fstatvfs(int descriptor, struct statvfs* result);
  /// flock(LOCK_EX | LOCK_NB).
  virtual int try_lock(int descriptor);
  /// Names in a directory without "." and "..", in any order.
  virtual int list(int directory, std::vector<std::string>& names);
};

}  // namespace trainkit
