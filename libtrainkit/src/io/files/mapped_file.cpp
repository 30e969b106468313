#include "trainkit/io/mapped_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>

#include "core/files/unique_descriptor.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit {

// Note [SIGBUS on mapped files]
//
// Reading a mapped page past the end of a truncated file raises SIGBUS in the reading thread. The handler finds the
// mapping of the faulting address, replaces its pages from there to the end by zeros, and sets `damaged`. The read then
// continues with zeros, and check() reports the damage.
//
// A signal handler may not take locks or allocate, so:
//   The guards are a linked list of atomics that only grows. Guards are never deleted; a released one (end == 0) is
//   reused, so the list is as long as the largest number of mappings at one time.
//   acquire() stores `begin` before `end`, and release() clears `end`: the handler never matches half-written bounds.
//   acquire() runs under a mutex, because two threads could otherwise reuse the same guard.
// Faults outside all guards go to the handler that was installed before ours.

/// Address range of a mapping; see Note [SIGBUS on mapped files].
struct MappedFile::Guard {
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};  // 0 if the guard is free
  std::atomic<bool> damaged{false};
  Guard* next = nullptr;

  static std::atomic<Guard*> head;
  static Guard* acquire(uintptr_t begin, uintptr_t end);
  static void release(Guard* guard) { guard->end.store(0); }
  static Guard* find(uintptr_t address);
  static void install_handler();
  static void handle(int signal, siginfo_t* info, void* context);
};

std::atomic<MappedFile::Guard*> MappedFile::Guard::head{nullptr};

namespace {

struct sigaction previous_handler;
std::once_flag handler_installed;
uintptr_t page_bytes = 4096;

void forward_signal(int signal, siginfo_t* info, void* context) {
  if (previous_handler.sa_flags & SA_SIGINFO) {
    previous_handler.sa_sigaction(signal, info, context);
  } else if (previous_handler.sa_handler == SIG_DFL || previous_handler.sa_handler == SIG_IGN) {
    ::signal(signal, SIG_DFL);  // the instruction faults again, now with the default action
  } else {
    previous_handler.sa_handler(signal);
  }
}

absl::Status file_error(const std::string& path, int error) {
  const bool missing = error == ENOENT || error == ENOTDIR;
  return to_status({.exit_code = ExitCode::kData,
                    .id = missing ? "data.missing" : "data.unreadable",
                    .where = path,
                    .problem = missing ? "no such file" : "cannot be read",
                    .got = missing ? "" : std::strerror(error)},
                   missing ? absl::StatusCode::kNotFound : absl::StatusCode::kPermissionDenied);
}

absl::Status not_ordinary(const std::string& path, mode_t mode) {
  const char* kind = S_ISDIR(mode) ? "a folder" : S_ISFIFO(mode) ? "a pipe" : S_ISSOCK(mode) ? "a socket" : "a device";
  return to_status({.exit_code = ExitCode::kData,
                    .id = "data.unreadable",
                    .where = path,
                    .problem = "not an ordinary file",
                    .got = kind,
                    .expected = "a file"},
                   absl::StatusCode::kInvalidArgument);
}

}  // namespace

MappedFile::Guard* MappedFile::Guard::acquire(uintptr_t begin, uintptr_t end) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  Guard* guard = head.load();
  while (guard && guard->end.load() != 0) guard = guard->next;
  if (!guard) {
    guard = new Guard;
    guard->next = head.load();
    head.store(guard);
  }
  guard->damaged.store(false);
  guard->begin.store(begin);
  guard->end.store(end);
  return guard;
}

MappedFile::Guard* MappedFile::Guard::find(uintptr_t address) {
  for (Guard* guard = head.load(); guard; guard = guard->next) {
    const uintptr_t end = guard->end.load();
    if (address < end && address >= guard->begin.load()) return guard;
  }
  return nullptr;
}

// Uses only operations that are safe in a signal handler: atomics and mmap, a plain system call on Linux. See Note
// [SIGBUS on mapped files].
void MappedFile::Guard::handle(int signal, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  if (Guard* guard = find(address)) {
    const uintptr_t from = address & ~(page_bytes - 1);
    const size_t length = guard->end.load() - from;
    void* zeros = ::mmap(reinterpret_cast<void*>(from), length, PROT_READ,
                         MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (zeros != MAP_FAILED) {
      guard->damaged.store(true);
      errno = saved_errno;
      return;
    }
  }
  forward_signal(signal, info, context);
  errno = saved_errno;
}

void MappedFile::Guard::install_handler() {
  std::call_once(handler_installed, [] {
    page_bytes = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
    struct sigaction action = {};
    action.sa_sigaction = &Guard::handle;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    sigemptyset(&action.sa_mask);
    ::sigaction(SIGBUS, &action, &previous_handler);
  });
}

absl::StatusOr<std::shared_ptr<const MappedFile>> MappedFile::open(const std::string& path) {
  // O_NONBLOCK: opening a pipe would wait for a writer.
  detail::UniqueDescriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (descriptor.get() < 0) return file_error(path, errno);
  struct stat info = {};
  if (::fstat(descriptor.get(), &info) != 0) return file_error(path, errno);
  if (!S_ISREG(info.st_mode)) return not_ordinary(path, info.st_mode);

  const auto size = static_cast<size_t>(info.st_size);
  const std::byte* data = nullptr;
  if (size > 0) {
    void* map = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor.get(), 0);
    if (map == MAP_FAILED) return file_error(path, errno);
    data = static_cast<const std::byte*>(map);
  }
  return std::shared_ptr<const MappedFile>(new MappedFile(path, descriptor.release(), data, size));
}

MappedFile::MappedFile(std::string path, int descriptor, const std::byte* data, size_t size)
    : path_(std::move(path)), descriptor_(descriptor), data_(data), size_(size) {
  if (!data_) return;
  Guard::install_handler();
  const auto begin = reinterpret_cast<uintptr_t>(data_);
  guard_ = Guard::acquire(begin, begin + size_);
}

MappedFile::~MappedFile() {
  if (guard_) Guard::release(guard_);
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
  ::close(descriptor_);
}

void MappedFile::release() const {
  constexpr size_t kLeast = 1 << 20;
  if (size_ >= kLeast) ::madvise(const_cast<std::byte*>(data_), size_, MADV_DONTNEED);
}

bool MappedFile::damaged() const { return guard_ && guard_->damaged.load(std::memory_order_relaxed); }

absl::Status MappedFile::check() const {
  struct stat info = {};
  const bool shorter = ::fstat(descriptor_, &info) == 0 && static_cast<size_t>(info.st_size) < size_;
  if (!damaged() && !shorter) return absl::OkStatus();
  return to_status({.exit_code = ExitCode::kData,
                    .id = "data.damaged",
                    .where = path_,
                    .problem = "the file became shorter while it was being read",
                    .got = std::to_string(info.st_size) + " bytes",
                    .expected = std::to_string(size_) + " bytes",
                    .hint = "do not write to a data set that a run reads; copy or rename the new file into place"},
                   absl::StatusCode::kDataLoss);
}

}  // namespace trainkit
