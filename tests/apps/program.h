#pragma once
/// A program of build/bin as a child process.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "fast_start/start_program.h"
#include "read_text.h"

namespace trainkit::test {

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
    ProgramStart start{.arguments = std::move(arguments), .out = out_, .err = err_};
    if (options.environment) {
      start.environment = *std::move(options.environment);
    } else {
      for (char** variable = environ; *variable; ++variable) start.environment.emplace_back(*variable);
    }
    pid_ = start_program(start);
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
