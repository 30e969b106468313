// trainkit watch: serves the report of a run while it trains.
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <httplib.h>
#include <pthread.h>
#include <sys/random.h>

#include <csignal>
#include <filesystem>
#include <mutex>
#include <thread>

#include "report/markup.h"
#include "report/report.h"
#include "trainkit/command.h"
#include "trainkit/config/config.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/report/summary.h"

namespace trainkit::tool {
namespace {

namespace fs = std::filesystem;

constexpr char kHost[] = "127.0.0.1";

/// Returns 128 random bits as 32 hexadecimal digits.
std::string random_token() {
  unsigned char bytes[16];
  TORCH_CHECK(::getrandom(bytes, sizeof bytes, 0) == sizeof bytes, "getrandom failed");
  std::string token;
  for (const unsigned char byte : bytes) token += fmt::format("{:02x}", byte);
  return token;
}

/// Compares without a hint at the first difference through the time that it takes.
bool same_secret(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  int different = 0;
  for (size_t i = 0; i < a.size(); ++i) different |= a[i] ^ b[i];
  return different == 0;
}

/// The page and its body, which is rendered again when a file of a run has changed. Thread-safe.
class LivePage {
 public:
  explicit LivePage(std::vector<std::string> runs) : runs_(std::move(runs)), report_(runs_) {}

  /// Returns the body and its digest.
  std::pair<std::string, std::string> body() {
    const std::lock_guard lock(mutex_);
    if (const std::string now = state(); now != state_ || body_.empty()) {
      auto rendered = report_.body();
      if (rendered.ok()) {
        body_ = *std::move(rendered);
      } else {
        body_ = "<header><h1>No report</h1><p>" +
                trainkit::detail::escape_markup(escape_text(error_line(rendered.status()), 1000)) + "</p></header>";
      }
      state_ = now;
      digest_ = Digest::of(body_);
    }
    return {body_, digest_};
  }

  absl::StatusOr<std::string> page() {
    const std::lock_guard lock(mutex_);
    return report_.page("body");
  }

 private:
  /// Sizes and times of the files that the page shows.
  std::string state() const {
    std::string text;
    for (const std::string& run : runs_) {
      for (const char* name : {"metrics.jsonl", "run.json", "summary.json", "error.json", "config.yaml", "checkpoints",
                               "results/report.json"}) {
        std::error_code ignored;
        const fs::path path = fs::path(run) / name;
        const auto size = fs::file_size(path, ignored);
        const auto time = fs::last_write_time(path, ignored);
        text += fmt::format("{} {};", size, time.time_since_epoch().count());
      }
    }
    return text;
  }

  const std::vector<std::string> runs_;
  std::mutex mutex_;
  trainkit::detail::LiveReport report_;
  std::string state_, body_, digest_;
};

/// Answers GET requests that have the token.
class PageServer {
 public:
  PageServer(std::vector<std::string> runs, std::string token) : token_(std::move(token)), page_(std::move(runs)) {
    server_.set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
      response.set_header("Cache-Control", "no-store");
      response.set_header("Referrer-Policy", "no-referrer");
      response.set_header("X-Content-Type-Options", "nosniff");
      response.set_header("X-Frame-Options", "DENY");
      return refuse(request, response) ? httplib::Server::HandlerResponse::Handled
                                       : httplib::Server::HandlerResponse::Unhandled;
    });
    server_.Get("/" + token_ + "/", [this](const httplib::Request&, httplib::Response& response) { page(response); });
    server_.Get("/" + token_ + "/body", [this](const httplib::Request& request, httplib::Response& response) {
      const auto [body, digest] = page_.body();
      const std::string tag = "\"" + digest + "\"";
      response.set_header("ETag", tag);
      if (request.get_header_value("If-None-Match") == tag) {
        response.status = 304;
      } else {
        response.set_content(body, "text/html; charset=utf-8");
      }
    });
    server_.set_payload_max_length(1024);
    // The default, SO_REUSEPORT, would let a second server share the port.
    server_.set_socket_options([](socket_t socket) {
      const int on = 1;
      ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    });
    server_.new_task_queue = [] { return new httplib::ThreadPool(4); };
  }

  /// Binds loopback only. Returns the port; 0 if it is not available.
  int bind(int port) {
    if (port == 0) return port_ = std::max(server_.bind_to_any_port(kHost), 0);
    return port_ = server_.bind_to_port(kHost, port) ? port : 0;
  }

  /// Serves until SIGINT or SIGTERM. Both must be blocked in this thread.
  void serve(const sigset_t& signals) {
    std::thread thread([this] { server_.listen_after_bind(); });
    int received = 0;
    sigwait(&signals, &received);
    while (!server_.is_running()) std::this_thread::yield();  // stop() has no effect before
    server_.stop();
    thread.join();
  }

 private:
  /// Refuses what is not a GET request to this host with the token. A name of another host in the request comes from a
  /// page that has pointed its own name to this machine.
  bool refuse(const httplib::Request& request, httplib::Response& response) const {
    const std::string host = request.get_header_value("Host");
    const bool is_local = host == fmt::format("{}:{}", kHost, port_) || host == fmt::format("localhost:{}", port_);
    const std::string_view path = request.path;
    const std::string_view token = path.substr(0, path.find('/', 1));
    if (!is_local || !same_secret(token, "/" + token_)) {
      response.status = 403;
      response.set_content("403: open the address that trainkit watch has printed\n", "text/plain");
      return true;
    }
    if (request.method == "GET" || request.method == "HEAD") return false;
    response.status = 405;
    response.set_header("Allow", "GET, HEAD");
    response.set_content("405: this page is read-only\n", "text/plain");
    return true;
  }

  void page(httplib::Response& response) {
    const auto page = page_.page();
    if (page.ok()) return response.set_content(*page, "text/html; charset=utf-8");
    response.status = 500;
    response.set_content(error_line(page.status()) + "\n", "text/plain; charset=utf-8");
  }

  std::string token_;
  LivePage page_;
  int port_ = 0;
  httplib::Server server_;
};

}  // namespace

absl::StatusOr<int> watch_command(const Arguments& given) {
  ConfigParser parser({.name = "trainkit watch",
                       .version = library_versions()["trainkit"],
                       .description = "Shows the report of a run while it trains, in a browser on this machine. Prints "
                                      "the address; Ctrl-C ends.\nThe page is read-only. Only this machine can reach "
                                      "it, and only with the address.",
                       .examples = {"trainkit watch runs/hsi", "trainkit watch runs/a runs/b --port 8080"},
                       .words = "RUN [RUN...]"});
  int port = 0;
  parser.add("port", &port,
             {.help = "Port on 127.0.0.1. 0: any free port.", .group = "Options", .min = 0, .max = 65535});
  Arguments arguments = given;
  TRAINKIT_ASSIGN_OR_RETURN(const std::vector<std::string> folders, parser.take_words(arguments.flags));
  TRAINKIT_ASSIGN_OR_RETURN(const bool wanted, parse_or_print(parser, arguments));
  if (!wanted || folders.empty()) return 0;
  TRAINKIT_ASSIGN_OR_RETURN(const std::vector<std::string> runs, trainkit::detail::find_all_runs(folders));
  // All threads of the server inherit the mask, so that sigwait() receives the signals.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  const std::string token = random_token();
  PageServer server(runs, token);
  const int bound = server.bind(port);
  if (bound == 0) {
    return parser.invalid("port", "cannot listen on 127.0.0.1", "a free port, 1024 or above",
                          "--port 0 takes any free port");
  }
  print(fmt::format("http://{}:{}/{}/\nCtrl-C ends\n", kHost, bound, token));
  server.serve(signals);
  return 0;
}

}  // namespace trainkit::tool
