#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <system_error>
#include <thread>

#include "core/base/mask_secrets.h"
#include "core/files/new_files.h"
#include "logging/append_file.h"
#include "logging/chart_series.h"
#include "logging/escape_name.h"
#include "logging/media.h"
#include "trainkit/core/error.h"
#include "trainkit/core/format.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/logging/sinks.h"

extern char** environ;

namespace trainkit {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

// Note [W&B client process]
//
// The client is a Python child process connected by one socket pair, which is its standard input.
//   Protocol: the first line has the options of wandb.init. The client answers one line: `ready`, `missing` (no wandb
//   package) or `no_credentials`. Then come steps with their series and texts, and at last `finish`. The client
//   answers `done`, or `failed` at any time.
//   No call waits, except create() and close(): sends and receives use MSG_DONTWAIT. Unsent lines are kept in pending_,
//   up to kMaxPending; beyond that the logger fails once and drops records.
//   Before `wandb` is imported, the client answers `ready`, because the import and the connection take seconds.
//   Signals: the child gets its own process group, an empty signal mask and default handlers, so Ctrl+C does not reach
//   it and it can finish the upload. If this process dies, the client reads the end of the socket and closes the run.
//   Credentials stay in the environment. Settings with a secret name are sent as "***".

constexpr size_t kMaxPending = 4 << 20;
constexpr std::chrono::seconds kStartTimeout{120};

/// Program of the child; see Note [W&B client process].
constexpr char kClient[] = R"python(
import base64, html, importlib.util, json, netrc, os, socket, sys, urllib.parse

if sys.path and sys.path[0] == "":
    del sys.path[0]  # do not import a folder named wandb in the working directory
link = socket.socket(fileno=os.dup(0))
lines = link.makefile("r", encoding="utf-8")


def say(**reply):
    link.sendall((json.dumps(reply) + "\n").encode())


def has_credentials():
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urllib.parse.urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def picture(path):
    try:
        return wandb.Image(path)
    except Exception:  # without Pillow
        with open(path, "rb") as file:
            data = base64.b64encode(file.read()).decode()
        return wandb.Html(f'<img src="data:image/png;base64,{data}">', inject=False)


start = json.loads(lines.readline())
spec = importlib.util.find_spec("wandb")
if spec is None or spec.origin is None:
    say(missing=sys.executable)
    sys.exit(0)
start["mode"] = start["mode"] or os.environ.get("WANDB_MODE") or "online"
if start["mode"] == "online" and not has_credentials():
    say(no_credentials=True)
    sys.exit(0)
say(ready=True)
if start.pop("only_check", False):
    sys.exit(0)
try:
    import wandb
    run = wandb.init(**start, settings=wandb.Settings(console="off", disable_git=True, save_code=False))
    for line in lines:
        record = json.loads(line)
        if "finish" in record:
            break
        step = record.pop("step")
        if "text" in record:
            run.log({record["tag"]: wandb.Html("<pre>" + html.escape(record["text"]) + "</pre>")}, step=step)
        elif "picture" in record:
            run.log({record["tag"]: picture(record["picture"])}, step=step)
        elif "counts" in record:
            histogram = (record["counts"], record["edges"])
            run.log({record["tag"]: wandb.Histogram(np_histogram=histogram)}, step=step)
        else:
            run.log({name: float(value) for name, value in record["series"].items()}, step=step)
    run.finish()
    say(done=True)
except BaseException as error:
    say(failed=f"{type(error).__name__}: {error}")
    raise
)python";

absl::Status usage_error(std::string problem, std::string got, std::string hint) {
  return to_status({.exit_code = ExitCode::kUsage,
                    .id = "log.wandb",
                    .field = "--use_wandb",
                    .problem = std::move(problem),
                    .got = std::move(got),
                    .hint = std::move(hint)},
                   absl::StatusCode::kFailedPrecondition);
}

absl::Status client_error(std::string problem, const std::string& log) {
  return to_status({.exit_code = ExitCode::kBug,
                    .id = "log.wandb",
                    .problem = std::move(problem),
                    .hint = "training continues without W&B; see " + log},
                   absl::StatusCode::kUnavailable);
}

std::string interpreter(const WandbOptions& options) {
  if (!options.python.empty()) return options.python;
  const char* python = std::getenv("TRAINKIT_PYTHON");
  return python && *python ? python : "python3";
}

/// Returns eight random letters and digits, like W&B's own ids.
std::string random_id() {
  static constexpr char kLetters[] = "0123456789abcdefghijklmnopqrstuvwxyz";
  std::random_device random;
  std::string id(8, '0');
  for (char& letter : id) letter = kLetters[random() % 36];
  return id;
}

/// Returns the id of this run: the stored id on resume, or a new one, which is stored for the next resume.
absl::StatusOr<std::string> run_id(const WandbOptions& options) {
  const std::string path = options.dir + "/wandb/run_id";
  std::string id;
  const auto stored = options.resume ? Fs::posix().read_file(path, 256) : std::string();
  if (stored.ok()) id = stored->substr(0, stored->find('\n'));
  if (!id.empty()) return id;
  id = random_id();
  TRAINKIT_RETURN_IF_ERROR(write_file_atomically(Fs::posix(), path, id + "\n"));
  return id;
}

std::string start_line(const WandbOptions& options, const std::string& id, bool only_check) {
  json config = json::object();
  for (const auto& [name, value] : options.config) {
    const bool secret = detail::mask_secrets(name + "=x") != name + "=x";
    config[escape_text(name)] = secret ? "***" : format_text(value);
  }
  json start = {{"dir", options.dir}, {"project", options.project}, {"id", id},
                {"resume", "allow"},  {"mode", options.mode},       {"config", std::move(config)}};
  if (only_check) start["only_check"] = true;
  if (!options.name.empty()) start["name"] = options.name;
  return start.dump(-1, ' ', false, json::error_handler_t::replace);
}

/// Starts the client with `socket` as its standard input and `log` as its output. Returns errno, or 0. See Note [W&B
/// client process].
int spawn_client(const std::string& python, int socket, const std::string& log, pid_t& child) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  int error = posix_spawn_file_actions_adddup2(&actions, socket, 0);
  if (error == 0) {
    error =
        posix_spawn_file_actions_addopen(&actions, 1, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, detail::kNewFileMode);
  }
  if (error == 0) error = posix_spawn_file_actions_adddup2(&actions, 1, 2);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  std::string program = python, flag = "-c", script = kClient;
  char* arguments[] = {program.data(), flag.data(), script.data(), nullptr};
  if (error == 0) error = posix_spawnp(&child, python.c_str(), &actions, &attributes, arguments, environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

/// Waits for the end of the client, which may upload for minutes, in a thread of its own.
void reap(pid_t child) {
  try {
    std::thread([child] { ::waitpid(child, nullptr, 0); }).detach();
  } catch (const std::system_error&) {  // without a thread the child stays until this process ends
  }
}

}  // namespace

class WandbLogger::Impl {
 public:
  Impl(int socket, pid_t child, const WandbOptions& options, std::string log)
      : socket_(socket),
        child_(child),
        finish_timeout_(options.finish_timeout),
        log_(std::move(log)),
        dir_(options.dir) {}

  void send_image(const LogImage& image) {
    const std::string path = dir_ + "/" + detail::kMediaFolder + "/" + detail::media_file_name(image.tag, image.step);
    if (!Fs::posix().exists(path)) return;  // MediaLogger reports why
    send(json{{"step", image.step}, {"tag", detail::escape_name(image.tag)}, {"picture", path}}.dump());
  }

  /// Starts the client, which writes its output to `log`, and waits for its first answer. With `only_check` it ends
  /// then.
  static absl::StatusOr<std::unique_ptr<Impl>> start(const WandbOptions& options, const std::string& id,
                                                     const std::string& log, bool only_check) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      return client_error(std::string("cannot create a socket for the W&B client: ") + std::strerror(errno),
                          "ulimit -n");
    }
    const std::string python = interpreter(options);
    pid_t child = 0;
    const int failed = spawn_client(python, ends[1], log, child);
    ::close(ends[1]);
    if (failed != 0) {
      ::close(ends[0]);
      return usage_error("cannot start Python for the W&B client: " + std::string(std::strerror(failed)), python,
                         "install python3 and `pip install wandb`, or set TRAINKIT_PYTHON to an interpreter");
    }
    auto impl = std::make_unique<Impl>(ends[0], child, options, log);
    impl->send(start_line(options, id, only_check));
    TRAINKIT_RETURN_IF_ERROR(impl->wait_until_ready(python));
    impl->closed_ = only_check;
    return impl;
  }

  ~Impl() {
    close().IgnoreError();
    ::close(socket_);
    reap(child_);
  }

  /// Waits for the client's first answer.
  absl::Status wait_until_ready(const std::string& python) {
    const auto reply = wait_for_reply(Clock::now() + kStartTimeout);
    if (reply && reply->contains("ready")) {
      ready_ = true;
      return absl::OkStatus();
    }
    closed_ = true;
    if (reply && reply->contains("missing")) {
      return usage_error("the wandb package is not installed", (*reply)["missing"], "pip install wandb");
    }
    if (reply && reply->contains("no_credentials")) {
      return usage_error("no credentials for W&B", "", "run `wandb login`, or set WANDB_MODE=offline");
    }
    return usage_error("the W&B client did not start", python, "see " + log_);
  }

  void send(std::string line) {
    if (closed_ || !status_.ok()) return;
    line += '\n';
    if (pending_.size() + line.size() > kMaxPending) {
      status_ = client_error("the W&B client is too slow; later records are dropped", log_);
      return;
    }
    pending_ += line;
    push();
  }

  /// Sends as many pending bytes as the socket accepts and reads the client's answers. Never waits.
  void push() {
    while (!pending_.empty()) {
      const ssize_t count = ::send(socket_, pending_.data(), pending_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) break;
      pending_.erase(0, static_cast<size_t>(count));
    }
    if (ready_ && status_.ok() && !done_) listen();
  }

  absl::Status status() {
    push();
    return status_;
  }

  absl::Status close() {
    if (closed_) return status_;
    send(R"({"finish":true})");
    closed_ = true;
    const auto deadline = Clock::now() + finish_timeout_;
    while (status_.ok() && !done_ && Clock::now() < deadline) {
      pollfd poll{.fd = socket_, .events = static_cast<short>(POLLIN | (pending_.empty() ? 0 : POLLOUT)), .revents = 0};
      ::poll(&poll, 1, 100);
      push();
    }
    if (status_.ok() && !done_) {
      return client_error("W&B did not finish in time; the client continues in the background", log_);
    }
    return status_;
  }

 private:
  std::optional<json> wait_for_reply(Clock::time_point deadline) {
    std::optional<json> reply;
    while (!reply && status_.ok() && Clock::now() < deadline) {
      pollfd poll{.fd = socket_, .events = POLLIN, .revents = 0};
      ::poll(&poll, 1, 100);
      reply = next_reply();
    }
    return reply;
  }

  void listen() {
    while (const auto reply = next_reply()) {
      if (reply->contains("done")) done_ = true;
      if (reply->contains("failed"))
        status_ = client_error("W&B: " + format_text((*reply)["failed"].get<std::string>()), log_);
    }
  }

  /// Returns the next complete line from the client, if there is one. The end of the socket is an error unless the run
  /// is done.
  std::optional<json> next_reply() {
    char buffer[4096];
    while (received_.find('\n') == std::string::npos) {
      const ssize_t count = ::recv(socket_, buffer, sizeof buffer, MSG_DONTWAIT);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return std::nullopt;
      if (count <= 0) {
        if (!done_) status_.Update(client_error("the W&B client ended", log_));
        return std::nullopt;
      }
      received_.append(buffer, static_cast<size_t>(count));
    }
    const size_t end = received_.find('\n');
    json reply = json::parse(received_.substr(0, end), nullptr, /*allow_exceptions=*/false);
    received_.erase(0, end + 1);
    return reply;
  }

  const int socket_;
  const pid_t child_;
  const std::chrono::milliseconds finish_timeout_;
  const std::string log_;
  const std::string dir_;
  std::string pending_, received_;
  absl::Status status_;
  bool ready_ = false;
  bool done_ = false;
  bool closed_ = false;
};

WandbLogger::WandbLogger(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
WandbLogger::~WandbLogger() = default;

absl::StatusOr<std::unique_ptr<WandbLogger>> WandbLogger::create(const WandbOptions& options) {
  TRAINKIT_RETURN_IF_ERROR(Fs::posix().create_directories(options.dir + "/wandb").status());
  TRAINKIT_ASSIGN_OR_RETURN(const std::string id, run_id(options));
  TRAINKIT_ASSIGN_OR_RETURN(auto impl,
                            Impl::start(options, id, options.dir + "/wandb/client.log", /*only_check=*/false));
  return std::unique_ptr<WandbLogger>(new WandbLogger(std::move(impl)));
}

absl::Status WandbLogger::check(const WandbOptions& options) {
  return Impl::start(options, "dry-run", "/dev/null", /*only_check=*/true).status();
}

void WandbLogger::log(const LogRecord& record) {
  json series = json::object();
  for (const auto& [name, value] : detail::chart_series(record)) {
    // Python's float() reads the texts.
    series[detail::escape_name(name)] = std::isfinite(value) ? json(value) : json(fmt::format("{}", value));
  }
  impl_->send(json{{"step", record.step}, {"series", std::move(series)}}.dump());
}

void WandbLogger::log_text(const LogText& text) {
  impl_->send(
      json{{"step", text.step}, {"tag", detail::escape_name(text.tag)}, {"text", format_text(text.text)}}.dump());
}

void WandbLogger::log_image(const LogImage& image) { impl_->send_image(image); }

void WandbLogger::log_histogram(const LogHistogram& h) {
  if (h.counts.empty()) return;
  std::vector<double> edges;
  for (size_t i = 0; i <= h.counts.size(); ++i) {
    edges.push_back(h.min + (h.max - h.min) * static_cast<double>(i) / static_cast<double>(h.counts.size()));
  }
  impl_->send(
      json{{"step", h.step}, {"tag", detail::escape_name(h.tag)}, {"counts", h.counts}, {"edges", edges}}.dump());
}

void WandbLogger::tick(int64_t) { impl_->push(); }
absl::Status WandbLogger::flush() { return impl_->status(); }
absl::Status WandbLogger::close() { return impl_->close(); }
bool WandbLogger::optional() const { return true; }

}  // namespace trainkit
