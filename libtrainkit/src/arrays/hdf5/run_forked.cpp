#include "arrays/hdf5/run_forked.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>

/// Defined in fuzzers, which would take the end of the copy for their own end.
// NOLINTNEXTLINE(bugprone-reserved-identifier)
extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));

namespace trainkit::detail {
namespace {

// Note [Reading in a forked copy]
//
// A library that crashes or corrupts memory on damaged input runs in a forked copy, so that this process survives.
//   The result starts with its length. A copy that dies while writing leaves a shorter message, which is not mistaken
//   for a complete one. The parent reads until the end of the pipe before it calls waitpid, so a large result cannot
//   block the copy.
//   The copy leaves with _exit: no destructors, exit handlers or stdio buffers of the parent run twice.
//   PR_SET_PDEATHSIG kills the copy with the parent. If the parent died before that call, getppid() has changed.
//   RLIMIT_CPU stops endless loops, and core dumps are disabled. stderr goes to /dev/null, because HDF5 and glibc print
//   there when they fail.
//   SIGINT, SIGTERM, SIGUSR1 and SIGPIPE are reset, so that the program's handlers do not run in the copy.
//   Only the calling thread exists in the copy. A lock held by another thread during fork stays locked there forever.

constexpr rlim_t kMostSeconds = 300;

bool write_all(int descriptor, const char* data, size_t size) {
  while (size > 0) {
    const ssize_t written = ::write(descriptor, data, size);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    data += written;
    size -= static_cast<size_t>(written);
  }
  return true;
}

std::string read_all(int descriptor) {
  std::string bytes;
  char piece[1 << 16];
  while (true) {
    const ssize_t got = ::read(descriptor, piece, sizeof piece);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return bytes;
    bytes.append(piece, static_cast<size_t>(got));
  }
}

/// Runs `work` in the copy and sends its result to `to`. See Note [Reading in a forked copy].
[[noreturn]] void run_child(const std::function<std::string()>& work, int to, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGPIPE}) std::signal(signal, SIG_DFL);
  if (__sanitizer_set_death_callback) __sanitizer_set_death_callback([] {});
  if (const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC); nowhere >= 0) ::dup2(nowhere, STDERR_FILENO);
  const rlimit seconds{kMostSeconds, kMostSeconds}, no_core{0, 0};
  ::setrlimit(RLIMIT_CPU, &seconds);
  ::setrlimit(RLIMIT_CORE, &no_core);
  bool sent = false;
  try {
    const std::string text = work();
    const uint64_t length = text.size();
    sent =
        write_all(to, reinterpret_cast<const char*>(&length), sizeof length) && write_all(to, text.data(), text.size());
  } catch (...) {
  }
  ::_exit(sent ? 0 : 1);
}

std::string describe_end(int status) {
  if (WIFSIGNALED(status)) return std::string("its reader was ended by ") + ::strsignal(WTERMSIG(status));
  return "its reader failed";
}

}  // namespace

absl::StatusOr<std::string> run_forked(const std::function<std::string()>& work) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return absl::ResourceExhaustedError(std::string("cannot create a pipe: ") + std::strerror(errno));
  }
  const pid_t parent = ::getpid(), copy = ::fork();
  if (copy == 0) {
    ::close(ends[0]);
    run_child(work, ends[1], parent);
  }
  const int why = errno;
  ::close(ends[1]);
  std::string bytes;
  if (copy > 0) bytes = read_all(ends[0]);
  ::close(ends[0]);
  if (copy < 0) return absl::ResourceExhaustedError(std::string("cannot create a process: ") + std::strerror(why));
  int status = 0;
  while (::waitpid(copy, &status, 0) < 0 && errno == EINTR) {
  }
  uint64_t length = 0;
  if (bytes.size() >= sizeof length) std::memcpy(&length, bytes.data(), sizeof length);
  if (bytes.size() < sizeof length || bytes.size() - sizeof length != length) {
    return absl::DataLossError(describe_end(status));
  }
  return bytes.substr(sizeof length);
}

}  // namespace trainkit::detail
