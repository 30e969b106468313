#pragma once
/// The system calls of the file layer as an interface, so that tests can simulate a failing disk.

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>

#include <string>
#include <vector>

namespace trainkit {

/// Each function makes the system call of the same name and returns its result or -errno. Interrupted calls and short
/// writes are passed on unchanged: Fs handles them, and tests check that. Any thread may call.
class SystemCalls {
 public:
  virtual ~SystemCalls() = default;
  /// Returns the real system calls.
  static SystemCalls& kernel();

  virtual int openat(int directory, const char* name, int flags, mode_t mode);
  virtual int close(int descriptor);
  virtual ssize_t pread(int descriptor, void* data, size_t size, off_t offset);
  virtual ssize_t pwrite(int descriptor, const void* data, size_t size, off_t offset);
  virtual int fsync(int descriptor);
  virtual int fstat(int descriptor, struct stat* result);
  /// Returns information about the entry itself, not about the target of a link.
  virtual int fstatat(int directory, const char* name, struct stat* result);
  virtual int mkdirat(int directory, const char* name, mode_t mode);
  virtual int unlinkat(int directory, const char* name, int flags);
  virtual int renameat2(int directory, const char* from, const char* to, unsigned flags);
  virtual int fstatvfs(int descriptor, struct statvfs* result);
  /// Calls flock(LOCK_EX | LOCK_NB).
  virtual int try_lock(int descriptor);
  /// Lists the names in a directory without "." and "..", in any order.
  virtual int list(int directory, std::vector<std::string>& names);
};

}  // namespace trainkit
