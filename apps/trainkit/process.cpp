#include "trainkit/process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit::tool {
namespace {

absl::Status at_limit(const std::string& id, const std::string& problem, int error) {
  return to_status({.exit_code = ExitCode::kDistributed,
                    .id = id,
                    .problem = problem + ": " + std::strerror(error),
                    .hint = error == EMFILE   ? "raise the limit of open files: ulimit -n"
                            : error == EAGAIN ? "raise the limit of processes: ulimit -u"
                                              : ""},
                   absl::StatusCode::kResourceExhausted);
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> all;
  all.reserve(texts.size() + 1);
  for (std::string& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

/// Runs in the child between fork and exec, so it must not allocate. Replaces the process; returns errno on failure.
int execute(char* const* argv, char* const* environment, int output, int errors, pid_t parent) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(static_cast<int>(ExitCode::kDistributed));  // the parent died before prctl
  const int null = open("/dev/null", O_RDONLY);
  if (null < 0 || dup2(null, 0) < 0 || dup2(output, 1) < 0 || dup2(errors, 2) < 0) return errno;
  if (null > 2) close(null);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  // exec keeps ignored signals ignored, and a shell's background job ignores SIGINT.
  for (const int number : {SIGINT, SIGTERM, SIGUSR1, SIGPIPE, SIGCHLD}) signal(number, SIG_DFL);
  execvpe(argv[0], argv, environment);
  return errno;
}

}  // namespace

absl::StatusOr<Pipe> make_pipe(const std::string& id) {
  std::array<int, 2> ends;
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return at_limit(id, "cannot create a pipe", errno);
  return Pipe{trainkit::detail::UniqueDescriptor(ends[0]), trainkit::detail::UniqueDescriptor(ends[1])};
}

absl::StatusOr<pid_t> start_process(ProcessOptions options) {
  // The child writes the errno of a failed exec to this pipe. A successful exec closes it, and read returns 0.
  TRAINKIT_ASSIGN_OR_RETURN(Pipe report, make_pipe(options.id));
  const std::vector<char*> argv = pointers(options.words), given = pointers(options.environment);
  char* const* const environment = options.environment.empty() ? environ : given.data();
  const pid_t parent = getpid(), pid = fork();
  if (pid == 0) {
    const int error = execute(argv.data(), environment, options.output, options.errors, parent);
    (void)!::write(report.writer.get(), &error, sizeof error);
    _exit(127);
  }
  if (pid < 0) return at_limit(options.id, "cannot start a process", errno);
  setpgid(pid, pid);  // the child does so too: the first one wins, and kill(-pid) works from here on
  report.writer.reset();
  int error = 0;
  ssize_t size = 0;
  while ((size = ::read(report.reader.get(), &error, sizeof error)) < 0 && errno == EINTR) continue;
  if (size != sizeof error) return pid;
  waitpid(pid, nullptr, 0);
  if (error == EMFILE) return at_limit(options.id, "cannot start a process", error);  // its stdin was one too many
  return to_status({.exit_code = ExitCode::kUsage,
                    .id = options.id,
                    .where = options.words[0],
                    .problem = std::string("cannot be started: ") + std::strerror(error)});
}

}  // namespace trainkit::tool
