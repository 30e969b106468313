#pragma once
/// A program of build/bin as a child process.

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

extern char** environ;

namespace trainkit::test {

inline std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

struct ProgramOptions {
  /// NAME=value; replaces this process's environment.
  std::optional<std::vector<std::string>> environment = {};
  /// Prefix of the output files: <stem>stdout, <stem>stderr.
  std::string stem = {};
};

/// Starts a program (of build/bin, or given by path) and writes its output to files in `folder`. The destructor kills
/// it.
class Program {
 public:
  Program(const std::string& name, std::vector<std::string> arguments, const std::string& folder,
          ProgramOptions options = {})
      : out_(folder + "/" + options.stem + "stdout"), err_(folder + "/" + options.stem + "stderr") {
    arguments.insert(arguments.begin(), name.starts_with('/') ? name : std::string(TRAINKIT_BIN_DIR) + "/" + name);
    const auto pointers = [](std::vector<std::string>& texts) {
      std::vector<char*> list;
      for (std::string& text : texts) list.push_back(text.data());
      list.push_back(nullptr);
      return list;
    };
    std::vector<char*> argv = pointers(arguments);
    std::vector<char*> variables;
    if (options.environment) variables = pointers(*options.environment);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, out_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_addopen(&actions, 2, err_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    const int failed =
        posix_spawnp(&pid_, argv[0], &actions, nullptr, argv.data(), options.environment ? variables.data() : environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed) throw std::runtime_error("cannot start " + arguments[0]);
  }
  ~Program() {
    if (pid_ > 0) {
      kill(SIGKILL);
      wait();
    }
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  void kill(int number) {
    if (pid_ > 0) ::kill(pid_, number);
  }
  pid_t pid() const { return pid_; }

  /// Returns wait() if the program has ended, else nullopt.
  std::optional<int> poll() {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
    pid_ = -1;
    return code_of(status);
  }

  /// The exit code, or 256 + the signal that killed it.
  int wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return code_of(status);
  }
  std::string output() const { return read_text(out_); }
  std::string errors() const { return read_text(err_); }

 private:
  static int code_of(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status); }
  pid_t pid_ = -1;
  std::string out_, err_;
};

}  // namespace trainkit::test
