#include "lane.h"

#include <ATen/Parallel.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <iostream>
#include <optional>

#include "check.h"
#include "oracle.h"
#include "temp_dir.h"

namespace trainkit::differential {
namespace {

constexpr int kStartSeconds = 40;  // more: the first program waits for Python to import torch, an export for its tracer

/// Reads a line; false at the end of the file or after `seconds`.
bool read_line(int descriptor, int seconds, std::string& line) {
  line.clear();
  for (;;) {
    pollfd ready{descriptor, POLLIN, 0};
    if (seconds > 0 && ::poll(&ready, 1, seconds * 1000) <= 0) return false;
    char text[4096];
    const ssize_t got = ::read(descriptor, text, sizeof(text));
    if (got <= 0) return false;
    line.append(text, static_cast<size_t>(got));
    if (line.back() == '\n') return true;  // one answer at a time
  }
}

bool write_line(int descriptor, const std::string& line) {
  return ::write(descriptor, line.data(), line.size()) == static_cast<ssize_t>(line.size());
}

/// Runs a program in a child until it kills itself.
void leave_killed_run(const Spec& spec, const std::string& folder, int seconds) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(static_cast<unsigned>(seconds));
    at::set_num_threads(1);
    run_until_killed(spec, folder);
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
}

}  // namespace

Lane::Lane(std::string python, int seconds) : python_(std::move(python)), seconds_(seconds) {
  ::signal(SIGPIPE, SIG_IGN);
}

Lane::~Lane() { stop(); }

void Lane::start() {
  if (!python_.empty() && !oracle_) oracle_ = std::make_unique<Oracle>(python_, TRAINKIT_DIFFERENTIAL_DIR "/oracle");
  int to[2], from[2];
  if (::pipe2(to, O_CLOEXEC) != 0 || ::pipe2(from, O_CLOEXEC) != 0) throw std::runtime_error("cannot create a pipe");
  std::cout.flush();
  worker_ = ::fork();
  if (worker_ == 0) {
    ::close(to[1]);
    ::close(from[0]);
    work(to[0], from[1]);
  }
  ::close(to[0]);
  ::close(from[1]);
  to_ = to[1];
  from_ = from[0];
}

void Lane::stop() {
  if (worker_ < 0) return;
  ::kill(worker_, SIGKILL);
  ::waitpid(worker_, nullptr, 0);
  ::close(to_);
  ::close(from_);
}

void Lane::work(int requests, int answers) {
  at::set_num_threads(1);
  std::string line;
  while (read_line(requests, 0, line)) {
    const nlohmann::json request = nlohmann::json::parse(line);
    nlohmann::json lines = nlohmann::json::array();
    try {
      for (const std::string& text : differential::check(spec_from_json(request[0]), oracle_.get(), request[1])) {
        if (lines.size() < 8) lines.push_back(text);
      }
    } catch (const std::exception& error) {
      lines.push_back(std::string("the driver failed: ") + error.what());
    }
    const std::string text = lines.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    if (!write_line(answers, text)) break;
  }
  ::_exit(0);
}

std::vector<std::string> Lane::check(const Spec& spec) {
  const bool first = worker_ < 0;
  const int seconds = seconds_ + (first || !spec.exported.empty() ? kStartSeconds : 0);
  if (first) start();
  std::optional<test::TempDir> killed;
  if (spec.oracle == "resume" && spec.loop != "step" && spec.kill) {
    leave_killed_run(spec, killed.emplace().path().string(), seconds_);
  }
  const std::string folder = killed ? killed->path().string() : "";
  std::string answer;
  const bool answered =
      write_line(to_, nlohmann::json{full_json(spec), folder}.dump() + "\n") && read_line(from_, seconds, answer);
  if (answered) return nlohmann::json::parse(answer).get<std::vector<std::string>>();
  pollfd end{from_, POLLIN, 0};
  const bool crashed = ::poll(&end, 1, 0) > 0;
  if (!crashed) ::kill(worker_, SIGKILL);
  int status = 0;
  ::waitpid(worker_, &status, 0);
  worker_ = -1;
  ::close(to_);
  ::close(from_);
  oracle_.reset();  // it may wait for the rest of a request
  if (!crashed) return {fmt::format("hung for {} s", seconds)};
  return {WIFSIGNALED(status) ? fmt::format("crashed: {}", strsignal(WTERMSIG(status))) : "crashed"};
}

}  // namespace trainkit::differential
