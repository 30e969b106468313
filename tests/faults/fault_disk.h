#pragma once
/// A disk in memory that crashes, tears writes, loses data and fails on demand, like LevelDB's fault injection tests.

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/files/system_calls.h"
#include "trainkit/core/fs.h"

namespace trainkit::test {

/// The effect of the fault at one call.
struct Fault {
  enum Kind {
    kNone,
    kCrash,       ///< The process dies before the call.
    kCrashAfter,  ///< The process dies after the call; a write is torn in the middle.
    kError,       ///< The call fails with `error`.
    kErrorOn,     ///< Every later call that writes fails too: the disk stays full or broken.
    kShort,       ///< A read or a write transfers half of its bytes.
  };
  Kind kind = kNone;
  int at = -1;  ///< Number of the call, from 0.
  int error = 0;
};

/// The part of unflushed data that survives.
enum class PowerLoss {
  kNone,    ///< All: the process died, the machine did not.
  kAll,     ///< Nothing.
  kRandom,  ///< Any part: each unflushed write and each unflushed directory change is kept or lost independently.
};

/// Keeps two images of every file and directory: as programs see it, and as it is on the disk. fsync copies pending
/// data to the disk image. If fsync fails, the pending data never reaches the disk and the next fsync succeeds, as on
/// Linux. The directory of a new file must be flushed for the file to keep its name. System calls may
/// come from several threads.
class FaultDisk : public SystemCalls {
 public:
  FaultDisk();
  ~FaultDisk() override;

  /// Arms a fault and counts calls from 0 again.
  void arm(const Fault& fault);
  /// Number of calls since arm().
  int calls() const { return calls_; }
  /// Name of the call at which the fault occurred; empty if it did not.
  const std::string& struck() const { return struck_; }
  /// Ends the process: closes descriptors, releases locks, and loses unflushed data according to `loss`.
  void restart(PowerLoss loss, uint64_t seed = 0);
  /// Whether renameat2 can exchange two entries; NFS, for example, cannot.
  bool can_exchange = true;
  /// Free space that fstatvfs reports.
  int64_t free_bytes = int64_t{1} << 40;
  /// Changes one byte of a file, on the disk too.
  void flip(const std::string& path, size_t at);
  /// All paths that programs see, sorted.
  std::vector<std::string> paths() const;

  int openat(int directory, const char* name, int flags, mode_t mode) override;
  int close(int descriptor) override;
  ssize_t pread(int descriptor, void* data, size_t size, off_t offset) override;
  ssize_t pwrite(int descriptor, const void* data, size_t size, off_t offset) override;
  int fsync(int descriptor) override;
  int fstat(int descriptor, struct stat* result) override;
  int fstatat(int directory, const char* name, struct stat* result) override;
  int mkdirat(int directory, const char* name, mode_t mode) override;
  int unlinkat(int directory, const char* name, int flags) override;
  int renameat2(int directory, const char* from, const char* to, unsigned flags) override;
  int fstatvfs(int descriptor, struct statvfs* result) override;
  int try_lock(int descriptor) override;
  int list(int directory, std::vector<std::string>& names) override;

 private:
  struct Node;
  using NodePtr = std::shared_ptr<Node>;
  using Entries = std::map<std::string, NodePtr>;
  /// Runs `effect` as the armed fault permits; `writes` is true for calls that kErrorOn keeps failing.
  template <class Effect>
  auto call(const char* name, bool writes, Effect&& effect) -> decltype(effect());
  NodePtr resolve(int directory, const std::string& path) const;
  int change(const NodePtr& directory, const std::function<void(Entries&)>& operation);

  std::mutex mutex_;
  NodePtr root_;
  std::map<int, NodePtr> open_;
  std::map<int, Node*> locks_;
  int next_descriptor_ = 100;
  Fault fault_;
  int calls_ = 0;
  bool dead_ = false;
  bool tear_ = false;   // the current write is torn
  bool halve_ = false;  // the current read or write is short
  std::string struck_;
};

/// A disk whose writes are lost after they have been reported as done.
class ForgetfulDisk final : public SystemCalls {
 public:
  explicit ForgetfulDisk(FaultDisk& disk) : disk_(disk) {}
  ssize_t pwrite(int, const void*, size_t size, off_t) override { return static_cast<ssize_t>(size); }
  int openat(int directory, const char* name, int flags, mode_t mode) override {
    return disk_.openat(directory, name, flags, mode);
  }
  int close(int descriptor) override { return disk_.close(descriptor); }
  ssize_t pread(int descriptor, void* data, size_t size, off_t offset) override {
    return disk_.pread(descriptor, data, size, offset);
  }
  int fsync(int descriptor) override { return disk_.fsync(descriptor); }
  int fstat(int descriptor, struct stat* result) override { return disk_.fstat(descriptor, result); }

 private:
  FaultDisk& disk_;
};

}  // namespace trainkit::test
