#include "trainkit/launch.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <optional>

#include "trainkit/command.h"
#include "trainkit/core/error.h"
#include "trainkit/core/processors.h"
#include "trainkit/core/status.h"
#include "trainkit/distributed/process_group.h"
#include "trainkit/process.h"
#include "trainkit/rank_output.h"

namespace trainkit::tool {
namespace {

using trainkit::detail::UniqueDescriptor;

constexpr char kStartError[] = "launch.start";
constexpr double kNever = std::numeric_limits<double>::infinity();
/// Delay after exit code 8. See Note [Ending of ranks].
constexpr double kSettleSeconds = 1.0;
/// Time for output of a rank's children after the last rank has ended.
constexpr double kDrainSeconds = 0.5;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

void write_all(int descriptor, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t size = ::write(descriptor, text.data() + done, text.size() - done);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return;  // the reader has closed the pipe; the ranks continue
    done += static_cast<size_t>(size);
  }
}

/// "[rank 3] ", with a colour per rank on a terminal.
std::string prefix(int64_t rank, int descriptor) {
  std::string text = fmt::format("[rank {}] ", rank);
  const char* term = std::getenv("TERM");
  if (!isatty(descriptor) || std::getenv("NO_COLOR") || !term || std::string_view(term) == "dumb") return text;
  constexpr std::array kColors = {36, 33, 35, 32, 34, 31};
  return fmt::format("\x1b[{}m{}\x1b[0m", kColors[static_cast<size_t>(rank) % kColors.size()], text);
}

absl::StatusOr<uint16_t> free_port() {
  const UniqueDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  const bool bound =
      socket.get() >= 0 && bind(socket.get(), generic, size) == 0 && getsockname(socket.get(), generic, &size) == 0;
  if (bound) return ntohs(address.sin_port);
  return to_status({.exit_code = ExitCode::kDistributed,
                    .id = "launch.port",
                    .problem = std::string("no free port on the loopback interface: ") + std::strerror(errno)});
}

/// How a rank ended. `status` is that of waitpid.
struct Ending {
  int64_t rank = 0;
  int status = 0;
  /// Whether the launcher had signalled it to end because of another rank.
  bool signalled = false;
  /// Whether a signal from the user ended it, with or without a saved checkpoint.
  bool stopped = false;

  bool exited_with(ExitCode code) const { return WIFEXITED(status) && WEXITSTATUS(status) == static_cast<int>(code); }
};

struct Rank {
  Rank(int64_t number, pid_t process, UniqueDescriptor output, UniqueDescriptor errors)
      : rank(number),
        pid(process),
        streams{Stream{std::move(output), {prefix(number, 1), [](const auto& line) { write_all(1, line); }}},
                Stream{std::move(errors), {prefix(number, 2), [](const auto& line) { write_all(2, line); }}}} {}

  struct Stream {
    UniqueDescriptor descriptor;
    RankOutput lines;
  };
  int64_t rank;
  pid_t pid;
  bool running = true;
  bool signalled = false;
  std::array<Stream, 2> streams;
};

/// Starts the ranks of this machine and waits for their end. See Note [Ending of ranks] in launch.h.
class Job {
 public:
  explicit Job(const LaunchOptions& options) : options_(options) {
    sigset_t handled;
    sigemptyset(&handled);
    for (const int number : {SIGCHLD, SIGINT, SIGTERM, SIGUSR1}) sigaddset(&handled, number);
    struct sigaction hangup {};
    sigaction(SIGHUP, nullptr, &hangup);
    if (hangup.sa_handler != SIG_IGN) sigaddset(&handled, SIGHUP);  // nohup ignores it: keep that
    sigprocmask(SIG_BLOCK, &handled, &previous_);
    signals_.reset(signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
    signal(SIGPIPE, SIG_IGN);
  }
  ~Job() {
    send(SIGKILL);
    for (Rank& rank : ranks_) {
      if (rank.running) waitpid(rank.pid, nullptr, 0);
    }
    sigprocmask(SIG_SETMASK, &previous_, nullptr);
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  absl::Status start(const std::vector<std::string>& program) {
    const int cpus = available_cpus();
    for (int64_t i = 0; i < options_.nproc_per_node; ++i) {
      std::vector<std::string> settings;
      for (const auto& [name, value] : rank_environment(options_, i, cpus, environment_variables()))
        settings.push_back(name + "=" + value);
      TRAINKIT_RETURN_IF_ERROR(start_rank(i, program, std::move(settings)));
    }
    return absl::OkStatus();
  }

  /// Blocks until every rank has ended and its output is copied.
  void run() {
    double drained_at = kNever;
    while (true) {
      const bool running = std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.running; });
      const bool has_output = std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
        return rank.streams[0].descriptor.get() >= 0 || rank.streams[1].descriptor.get() >= 0;
      });
      if (!running && drained_at == kNever) drained_at = now() + kDrainSeconds;
      if (!running && (!has_output || now() >= drained_at)) break;
      wait(std::min({terminate_at_, kill_at_, drained_at}));
      if (now() >= terminate_at_) terminate();
      if (now() >= kill_at_) kill();
    }
    for (Rank& rank : ranks_) {
      for (auto& stream : rank.streams) stream.lines.end();
    }
  }

  absl::StatusOr<int> result() const;

 private:
  absl::Status start_rank(int64_t local_rank, const std::vector<std::string>& program,
                          std::vector<std::string> environment);
  void wait(double until);
  void read(Rank::Stream& stream);
  void take_signals();
  void reap();
  /// Sends a signal to every running rank and to the processes that it has started.
  void send(int signal) {
    for (Rank& rank : ranks_) {
      if (rank.running) ::kill(-rank.pid, signal);
    }
  }
  void terminate() {
    for (Rank& rank : ranks_) rank.signalled |= rank.running;
    send(SIGTERM);
    send(SIGCONT);  // a suspended process handles SIGTERM only after it continues
    terminate_at_ = kNever;
    kill_at_ = std::min(kill_at_, now() + options_.grace.count());
  }
  void kill() {
    for (Rank& rank : ranks_) rank.signalled |= rank.running;
    send(SIGKILL);
    kill_at_ = kNever;
  }

  const LaunchOptions& options_;
  sigset_t previous_;
  UniqueDescriptor signals_;
  std::deque<Rank> ranks_;
  std::vector<Ending> endings_;
  int forwarded_signal_ = 0;
  int stop_signals_ = 0;
  double terminate_at_ = kNever;
  double kill_at_ = kNever;
};

absl::Status Job::start_rank(int64_t local_rank, const std::vector<std::string>& program,
                             std::vector<std::string> environment) {
  TRAINKIT_ASSIGN_OR_RETURN(Pipe output, make_pipe(kStartError));
  TRAINKIT_ASSIGN_OR_RETURN(Pipe errors, make_pipe(kStartError));
  TRAINKIT_ASSIGN_OR_RETURN(const pid_t pid, start_process({.words = program,
                                                            .output = output.writer.get(),
                                                            .errors = errors.writer.get(),
                                                            .environment = std::move(environment),
                                                            .id = kStartError}));
  Rank& rank = ranks_.emplace_back(options_.node_rank * options_.nproc_per_node + local_rank, pid,
                                   std::move(output.reader), std::move(errors.reader));
  for (const auto& stream : rank.streams) fcntl(stream.descriptor.get(), F_SETFL, O_NONBLOCK);
  return absl::OkStatus();
}

void Job::wait(double until) {
  std::vector<pollfd> polled = {{.fd = signals_.get(), .events = POLLIN, .revents = 0}};
  std::vector<Rank::Stream*> streams;
  for (Rank& rank : ranks_) {
    for (auto& stream : rank.streams) {
      if (stream.descriptor.get() < 0) continue;
      polled.push_back({.fd = stream.descriptor.get(), .events = POLLIN, .revents = 0});
      streams.push_back(&stream);
    }
  }
  const double milliseconds = std::ceil(std::max(until - now(), 0.0) * 1000);
  poll(polled.data(), polled.size(), until == kNever ? -1 : static_cast<int>(std::min(milliseconds, 1e6)));
  for (size_t i = 0; i < streams.size(); ++i) {
    if (polled[i + 1].revents != 0) read(*streams[i]);
  }
  take_signals();
}

void Job::read(Rank::Stream& stream) {
  std::array<char, 65536> buffer;
  const ssize_t size = ::read(stream.descriptor.get(), buffer.data(), buffer.size());
  if (size > 0) stream.lines.feed({buffer.data(), static_cast<size_t>(size)}, now());
  if (size > 0 || (size < 0 && (errno == EAGAIN || errno == EINTR))) return;
  stream.descriptor.reset();
}

void Job::take_signals() {
  signalfd_siginfo info;
  bool child = false;
  while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
    int number = static_cast<int>(info.ssi_signo);
    if (number == SIGCHLD) {
      child = true;
      continue;
    }
    if (number == SIGHUP) number = SIGTERM;  // the terminal is gone: save and stop
    if (number == SIGUSR1) {
      // Only to the ranks: it would kill their child processes, which have no handler for it.
      for (const Rank& rank : ranks_) {
        if (rank.running) ::kill(rank.pid, SIGUSR1);
      }
      continue;
    }
    send(number);
    forwarded_signal_ = number;
    if (++stop_signals_ > 1) kill_at_ = std::min(kill_at_, now() + options_.grace.count());
  }
  if (child) reap();
}

void Job::reap() {
  for (Rank& rank : ranks_) {
    int status = 0;
    if (!rank.running || waitpid(rank.pid, &status, WNOHANG) != rank.pid) continue;
    rank.running = false;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    const bool saved =
        WIFEXITED(status) && (WEXITSTATUS(status) == 128 + SIGINT || WEXITSTATUS(status) == 128 + SIGTERM);
    const bool by_user = WIFSIGNALED(status) && WTERMSIG(status) == forwarded_signal_;
    const Ending& ending = endings_.emplace_back(Ending{rank.rank, status, rank.signalled, saved || by_user});
    ::kill(-rank.pid, SIGKILL);  // processes that the rank has left behind
    double delay = 0;            // see Note [Ending of ranks], 3
    if (ending.exited_with(ExitCode::kDistributed)) delay = kSettleSeconds;
    if (stop_signals_ > 0) delay = std::max(delay, options_.grace.count());
    if (ending.stopped) delay = options_.stop_timeout.count();
    if (kill_at_ == kNever) terminate_at_ = std::min(terminate_at_, now() + delay);
  }
}

absl::StatusOr<int> Job::result() const {
  const auto priority = [](const Ending& ending) {  // see Note [Ending of ranks], 4
    if (ending.signalled) return 2;
    if (ending.stopped) return 3;
    return ending.exited_with(ExitCode::kDistributed) ? 1 : 0;
  };
  const auto cause = std::min_element(endings_.begin(), endings_.end(),
                                      [&](const Ending& a, const Ending& b) { return priority(a) < priority(b); });
  if (cause == endings_.end()) return 0;
  const bool exited = WIFEXITED(cause->status);
  const int code = exited ? WEXITSTATUS(cause->status) : 128 + WTERMSIG(cause->status);
  if (cause->stopped) return code;
  Error error{.exit_code = exited ? static_cast<ExitCode>(code) : ExitCode::kDistributed,
              .id = "launch.rank",
              .field = fmt::format("rank {}", cause->rank),
              .problem = exited ? fmt::format("ended with exit code {}", code)
                                : fmt::format("was killed by signal {} ({})", code - 128, strsignal(code - 128))};
  if (exited) error.hint = fmt::format("its error is in the lines above that begin with [rank {}]", cause->rank);
  if (!exited && code == 128 + SIGKILL)
    error.hint = "the kernel may have run out of memory; check its log: dmesg | grep -i oom";
  return to_status(error);
}

/// Path of `name` in this program's folder if it exists there; else `name`, which exec looks up in PATH.
std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  const std::string path = program_folder() + "/" + name;
  return access(path.c_str(), X_OK) == 0 ? path : name;
}

}  // namespace

EnvironmentVariables rank_environment(const LaunchOptions& options, int64_t local_rank, int cpus,
                                      EnvironmentVariables inherited) {
  std::erase_if(inherited, [](const auto& entry) { return entry.first.starts_with("TORCHELASTIC_"); });
  const auto set = [&](const char* name, int64_t value) { inherited[name] = std::to_string(value); };
  set("RANK", options.node_rank * options.nproc_per_node + local_rank);
  set("WORLD_SIZE", options.nnodes * options.nproc_per_node);
  set("LOCAL_RANK", local_rank);
  set("LOCAL_WORLD_SIZE", options.nproc_per_node);
  set("GROUP_RANK", options.node_rank);
  set("MASTER_PORT", options.master_port);
  inherited["MASTER_ADDR"] = options.master_addr;
  inherited["TRAINKIT_LAUNCH_ID"] = fmt::format("{}:{}", options.master_addr, options.master_port);
  inherited.try_emplace("OMP_NUM_THREADS", std::to_string(std::max<int64_t>(cpus / options.nproc_per_node, 1)));
  return inherited;
}

absl::StatusOr<int> launch(LaunchOptions options, const std::vector<std::string>& program) {
  if (options.master_port == 0) {
    TRAINKIT_ASSIGN_OR_RETURN(options.master_port, free_port());
  }
  TRAINKIT_RETURN_IF_ERROR(check_rendezvous({.rank = options.node_rank * options.nproc_per_node,
                                             .world_size = options.nnodes * options.nproc_per_node,
                                             .master_addr = options.master_addr,
                                             .master_port = options.master_port}));
  std::vector<std::string> words = program;
  words[0] = find_program(words[0]);
  Job job(options);
  TRAINKIT_RETURN_IF_ERROR(job.start(words));
  job.run();
  return job.result();
}

}  // namespace trainkit::tool
