#include "fault_disk.h"

#include <fcntl.h>
#include <linux/fs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include "trainkit/core/random.h"

namespace trainkit::test {

struct FaultDisk::Node {
  struct Write {
    size_t offset;
    std::string bytes;
    void apply(std::string& contents) const {
      if (contents.size() < offset + bytes.size()) contents.resize(offset + bytes.size(), '\0');
      contents.replace(offset, bytes.size(), bytes);
    }
  };

  bool is_directory = false;
  // A file: as programs see it, as on the disk, and the pending writes.
  std::string seen, durable;
  std::vector<Write> writes;
  // A directory: the same.
  Entries seen_entries, durable_entries;
  std::vector<std::function<void(Entries&)>> changes;

  void flush() {
    for (const Write& write : writes) write.apply(durable);
    for (const auto& change : changes) change(durable_entries);
    writes.clear();
    changes.clear();
  }

  /// Loses data that was not flushed; the disk image is then the only state.
  void lose(PowerLoss loss, RandomStream& random, std::set<Node*>& done) {
    if (!done.insert(this).second) return;
    if (loss == PowerLoss::kRandom) {
      for (Write write : writes) {
        const uint64_t fate = random.below(3);  // lost, complete, or cut
        if (fate == 2) write.bytes.resize(random.below(write.bytes.size() + 1));
        if (fate != 0) write.apply(durable);
      }
      for (const auto& change : changes) {
        if (random.below(2) == 1) change(durable_entries);
      }
    } else if (loss == PowerLoss::kNone) {
      durable = seen;
      durable_entries = seen_entries;
    }
    writes.clear();
    changes.clear();
    seen = durable;
    seen_entries = durable_entries;
    for (const auto& [name, child] : durable_entries) child->lose(loss, random, done);
  }
};

FaultDisk::FaultDisk() : root_(std::make_shared<Node>()) { root_->is_directory = true; }
FaultDisk::~FaultDisk() = default;

void FaultDisk::arm(const Fault& fault) {
  fault_ = fault;
  calls_ = 0;
  struck_.clear();
}

void FaultDisk::restart(PowerLoss loss, uint64_t seed) {
  open_.clear();
  locks_.clear();
  fault_ = {};
  dead_ = false;
  RandomStream random(seed);
  std::set<Node*> done;
  root_->lose(loss, random, done);
}

void FaultDisk::flip(const std::string& path, size_t at) {
  const NodePtr node = resolve(AT_FDCWD, path);
  node->seen.at(at) ^= 1;
  node->durable.at(at) ^= 1;
}

std::vector<std::string> FaultDisk::paths() const {
  std::vector<std::string> all;
  const std::function<void(const Node&, const std::string&)> visit = [&](const Node& node, const std::string& path) {
    for (const auto& [name, child] : node.seen_entries) {
      all.push_back(path + "/" + name);
      visit(*child, path + "/" + name);
    }
  };
  visit(*root_, "");
  return all;
}

template <class Effect>
auto FaultDisk::call(const char* name, bool writes, Effect&& effect) -> decltype(effect()) {
  const std::lock_guard lock(mutex_);
  if (dead_) return -EIO;  // a dead process has no effect
  const int number = calls_++;
  const bool strikes = number == fault_.at;
  const bool goes_on = fault_.kind == Fault::kErrorOn && fault_.at >= 0 && number > fault_.at && writes;
  if (strikes) struck_ = name;
  if (strikes && fault_.kind == Fault::kCrash) {
    dead_ = true;
    return -EIO;
  }
  if ((strikes && (fault_.kind == Fault::kError || (fault_.kind == Fault::kErrorOn && writes))) || goes_on) {
    if (std::strcmp(name, "close") == 0) effect();  // close releases the descriptor even if it fails
    if (std::strcmp(name, "fsync") == 0 && fault_.error != EINTR) tear_ = true;
    if (tear_) effect();
    tear_ = false;
    return -fault_.error;
  }
  halve_ = strikes && fault_.kind == Fault::kShort;
  tear_ = strikes && fault_.kind == Fault::kCrashAfter;
  const auto result = effect();
  halve_ = false;
  if (tear_) dead_ = true;
  tear_ = false;
  return result;
}

FaultDisk::NodePtr FaultDisk::resolve(int directory, const std::string& path) const {
  NodePtr node = root_;
  if (directory != AT_FDCWD) {
    const auto open = open_.find(directory);
    if (open == open_.end()) return nullptr;
    node = open->second;
  }
  for (size_t at = 0; at < path.size() && node;) {
    const size_t end = std::min(path.find('/', at), path.size());
    const std::string name = path.substr(at, end - at);
    at = end + 1;
    if (name.empty() || name == ".") continue;
    const auto entry = node->seen_entries.find(name);
    node = entry == node->seen_entries.end() ? nullptr : entry->second;
  }
  return node;
}

int FaultDisk::change(const NodePtr& directory, const std::function<void(Entries&)>& operation) {
  operation(directory->seen_entries);
  directory->changes.push_back(operation);
  return 0;
}

int FaultDisk::openat(int directory, const char* name, int flags, mode_t) {
  return call("openat", (flags & O_CREAT) != 0, [&]() -> int {
    NodePtr node = resolve(directory, name);
    if (node && (flags & O_EXCL)) return -EEXIST;
    if (!node && !(flags & O_CREAT)) return -ENOENT;
    if (node && (flags & O_DIRECTORY) && !node->is_directory) return -ENOTDIR;
    if (!node) {
      node = std::make_shared<Node>();
      change(open_.at(directory), [key = std::string(name), node](Entries& entries) { entries[key] = node; });
    }
    open_[next_descriptor_] = node;
    return next_descriptor_++;
  });
}

int FaultDisk::close(int descriptor) {
  return call("close", true, [&]() -> int {
    locks_.erase(descriptor);
    return open_.erase(descriptor) == 1 ? 0 : -EBADF;
  });
}

ssize_t FaultDisk::pread(int descriptor, void* data, size_t size, off_t offset) {
  return call("pread", false, [&]() -> ssize_t {
    const std::string& bytes = open_.at(descriptor)->seen;
    const auto from = static_cast<size_t>(offset);
    if (from >= bytes.size()) return 0;
    size = std::min(halve_ ? (size + 1) / 2 : size, bytes.size() - from);
    std::memcpy(data, bytes.data() + from, size);
    return static_cast<ssize_t>(size);
  });
}

ssize_t FaultDisk::pwrite(int descriptor, const void* data, size_t size, off_t offset) {
  return call("pwrite", true, [&]() -> ssize_t {
    if (halve_ || tear_) size = tear_ ? size / 2 : (size + 1) / 2;
    Node& node = *open_.at(descriptor);
    node.writes.push_back({static_cast<size_t>(offset), std::string(static_cast<const char*>(data), size)});
    node.writes.back().apply(node.seen);
    return static_cast<ssize_t>(size);
  });
}

int FaultDisk::fsync(int descriptor) {
  return call("fsync", true, [&]() -> int {
    Node& node = *open_.at(descriptor);
    if (tear_ && fault_.kind != Fault::kCrashAfter) {  // a failed flush: pending data never reaches the disk
      node.writes.clear();
      node.changes.clear();
    } else {
      node.flush();
    }
    return 0;
  });
}

int FaultDisk::fstat(int descriptor, struct stat* result) {
  return call("fstat", false, [&]() -> int {
    const Node& node = *open_.at(descriptor);
    *result = {};
    result->st_mode = node.is_directory ? (S_IFDIR | 0700) : (S_IFREG | 0600);
    result->st_size = static_cast<off_t>(node.seen.size());
    return 0;
  });
}

int FaultDisk::fstatat(int directory, const char* name, struct stat* result) {
  return call("fstatat", false, [&]() -> int {
    const NodePtr node = resolve(directory, name);
    if (!node) return -ENOENT;
    *result = {};
    result->st_mode = node->is_directory ? (S_IFDIR | 0700) : (S_IFREG | 0600);
    result->st_size = static_cast<off_t>(node->seen.size());
    return 0;
  });
}

int FaultDisk::mkdirat(int directory, const char* name, mode_t) {
  return call("mkdirat", true, [&]() -> int {
    if (resolve(directory, name)) return -EEXIST;
    const auto node = std::make_shared<Node>();
    node->is_directory = true;
    return change(resolve(directory, ""), [key = std::string(name), node](Entries& entries) { entries[key] = node; });
  });
}

int FaultDisk::unlinkat(int directory, const char* name, int flags) {
  return call("unlinkat", true, [&]() -> int {
    const NodePtr node = resolve(directory, name);
    if (!node) return -ENOENT;
    if (node->is_directory != ((flags & AT_REMOVEDIR) != 0)) return node->is_directory ? -EISDIR : -ENOTDIR;
    if (!node->seen_entries.empty()) return -ENOTEMPTY;
    return change(resolve(directory, ""), [key = std::string(name)](Entries& entries) { entries.erase(key); });
  });
}

int FaultDisk::renameat2(int directory, const char* from, const char* to, unsigned flags) {
  return call("renameat2", true, [&]() -> int {
    const NodePtr source = resolve(directory, from), target = resolve(directory, to);
    const bool swap = flags == RENAME_EXCHANGE;
    if (swap && !can_exchange) return -EINVAL;
    if (!source || (swap && !target)) return -ENOENT;
    if (!swap && target && target->is_directory) return target->seen_entries.empty() ? -EINVAL : -ENOTEMPTY;
    return change(resolve(directory, ""),
                  [a = std::string(from), b = std::string(to), source, target, swap](Entries& entries) {
                    entries[b] = source;
                    if (swap) {
                      entries[a] = target;
                    } else {
                      entries.erase(a);
                    }
                  });
  });
}

int FaultDisk::fstatvfs(int, struct statvfs* result) {
  return call("fstatvfs", false, [&]() -> int {
    *result = {};
    result->f_frsize = 1;
    result->f_blocks = static_cast<fsblkcnt_t>(int64_t{1} << 41);
    result->f_bavail = static_cast<fsblkcnt_t>(free_bytes);
    return 0;
  });
}

int FaultDisk::try_lock(int descriptor) {
  return call("flock", false, [&]() -> int {
    Node* node = open_.at(descriptor).get();
    for (const auto& [holder, locked] : locks_) {
      if (locked == node && holder != descriptor) return -EWOULDBLOCK;
    }
    locks_[descriptor] = node;
    return 0;
  });
}

int FaultDisk::list(int directory, std::vector<std::string>& names) {
  return call("list", false, [&]() -> int {
    names.clear();
    for (const auto& entry : open_.at(directory)->seen_entries) names.push_back(entry.first);
    return 0;
  });
}

}  // namespace trainkit::test
