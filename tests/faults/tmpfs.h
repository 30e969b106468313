#pragma once
/// A real file system that can become full.

#include <sys/mount.h>

#include <string>

#include "test_util.h"

namespace trainkit::test {

/// A temporary tmpfs, unmounted at the end of the scope. Needs permission to mount.
class Tmpfs {
 public:
  explicit Tmpfs(const std::string& options) {
    mounted_ = mount("tmpfs", dir_.path().c_str(), "tmpfs", 0, options.c_str()) == 0;
  }
  ~Tmpfs() {
    if (mounted_) umount2(dir_.path().c_str(), MNT_DETACH);
  }
  Tmpfs(const Tmpfs&) = delete;
  Tmpfs& operator=(const Tmpfs&) = delete;
  bool mounted() const { return mounted_; }
  std::string operator/(const std::string& name) const { return dir_ / name; }

 private:
  TempDir dir_;
  bool mounted_ = false;
};

}  // namespace trainkit::test
