#pragma once
/// Starts programs of build/bin quickly.

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <list>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

extern char** environ;

namespace trainkit::test {

/// What a program starts with. `arguments` begins with its path; the output goes to files.
struct ProgramStart {
  std::vector<std::string> arguments = {};
  std::vector<std::string> environment = {};  // NAME=value
  std::string out = {}, err = {};
};

namespace fast_start {

/// Starts a program in the usual way: it loads its libraries.
inline pid_t spawn(ProgramStart start) {
  const auto pointers = [](std::vector<std::string>& texts) {
    std::vector<char*> list;
    for (std::string& text : texts) list.push_back(text.data());
    list.push_back(nullptr);
    return list;
  };
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, start.out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_addopen(&actions, 2, start.err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  pid_t pid = -1;
  const int failed = posix_spawnp(&pid, start.arguments[0].c_str(), &actions, nullptr, pointers(start.arguments).data(),
                                  pointers(start.environment).data());
  posix_spawn_file_actions_destroy(&actions);
  if (failed) throw std::runtime_error("cannot start " + start.arguments[0]);
  return pid;
}

/// A program that waits before main; see prepared_main.cpp. It ends when this object does.
class PreparedProgram {
 public:
  PreparedProgram(const ProgramStart& start, std::vector<std::string> key) : key_(std::move(key)) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return;
    const int room = 1 << 20;
    setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    fcntl(ends[1], F_SETFD, 0);
    socket_ = ends[0];
    ProgramStart waiting{{start.arguments[0]}, start.environment, "/dev/null", "/dev/null"};
    std::string preload = PREPARED_MAIN_LIBRARY;
    std::erase_if(waiting.environment, [&](const std::string& variable) {
      if (!variable.starts_with("LD_PRELOAD=")) return false;
      preload = variable.substr(11) + ":" + preload;  // the others come first: their main runs in each copy
      return true;
    });
    waiting.environment.push_back("LD_PRELOAD=" + preload);
    waiting.environment.push_back("PREPARED_MAIN_SOCKET=" + std::to_string(ends[1]));
    spawn(std::move(waiting));
    close(ends[1]);
  }
  ~PreparedProgram() {
    if (socket_ >= 0) close(socket_);
  }
  PreparedProgram(const PreparedProgram&) = delete;
  PreparedProgram& operator=(const PreparedProgram&) = delete;

  bool serves(const std::vector<std::string>& key) const { return key == key_; }

  /// The number of the new process, or -1 if the program cannot be started so.
  pid_t start(const ProgramStart& start, const std::string& folder) const {
    const mode_t mask = umask(0);
    umask(mask);
    std::string request;
    const auto add = [&](const std::string& text) { request += text + '\0'; };
    for (const std::string& text : {folder, start.out, start.err, std::to_string(mask)}) add(text);
    add(std::to_string(start.arguments.size() - 1));
    for (size_t i = 1; i < start.arguments.size(); ++i) add(start.arguments[i]);
    for (const std::string& variable : start.environment) add(variable);
    pid_t pid = -1;
    if (socket_ < 0 || send(socket_, request.data(), request.size(), MSG_NOSIGNAL) < 0) return -1;
    return recv(socket_, &pid, sizeof pid, 0) == sizeof pid ? pid : -1;
  }

 private:
  std::vector<std::string> key_;
  int socket_ = -1;
};

/// The program, and what it inherits and may read before main: variables and ignored signals.
inline std::vector<std::string> key_of(const ProgramStart& start) {
  std::vector<std::string> key{start.arguments[0]};
  for (const std::string& variable : start.environment) {
    const std::string name = variable.substr(0, variable.find('='));
    const bool is_rank = name == "RANK" || name == "LOCAL_RANK" || name == "WORLD_SIZE" || name == "LOCAL_WORLD_SIZE" ||
                         name.starts_with("MASTER_");
    if (!is_rank) key.push_back(variable);
  }
  for (int number = 1; number < SIGRTMIN; ++number) {
    struct sigaction action {};
    if (sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN) {
      key.push_back("ignores " + std::to_string(number));
    }
  }
  return key;
}

}  // namespace fast_start

/// Starts a program of build/bin as a child of this process: a copy of a process that has loaded the program's
/// libraries for the first start with this environment. TRAINKIT_TEST_FULL and sanitizers load them each time.
inline pid_t start_program(const ProgramStart& start) {
  static std::mutex mutex;
  static std::list<fast_start::PreparedProgram> prepared;
  static pid_t owner = getpid();
  std::error_code gone;
  const std::string folder = std::filesystem::current_path(gone).string();
  const bool is_own = start.arguments[0].starts_with(TRAINKIT_BIN_DIR "/");
  if (!is_own || gone || owner != getpid() || !PREPARED_MAIN_LIBRARY[0] || std::getenv("TRAINKIT_TEST_FULL")) {
    return fast_start::spawn(start);
  }
  const std::lock_guard lock(mutex);
  const std::vector<std::string> key = fast_start::key_of(start);
  auto found = std::find_if(prepared.begin(), prepared.end(), [&](const auto& one) { return one.serves(key); });
  if (found == prepared.end()) {
    constexpr size_t kMost = 4;
    if (prepared.size() == kMost) prepared.pop_front();
    found = prepared.emplace(prepared.end(), start, key);
  }
  const pid_t pid = found->start(start, folder);
  return pid > 0 ? pid : fast_start::spawn(start);
}

}  // namespace trainkit::test
