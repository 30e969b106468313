#pragma once
/// A program of build/bin as a child process.

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
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

/// Starts a program with its output in files of `folder`; it is killed if the object goes first.
class Program {
 public:
  Program(const std::string& name, std::vector<std::string> arguments, const std::string& folder)
      : out_(folder + "/stdout"), err_(folder + "/stderr") {
    arguments.insert(arguments.begin(), std::string(TRAINKIT_BIN_DIR) + "/" + name);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, out_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_addopen(&actions, 2, err_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    const int failed = posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ);
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

  void kill(int number) { ::kill(pid_, number); }

  /// The exit code, or 256 + the signal that killed it.
  int wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
  }
  std::string output() const { return read_text(out_); }
  std::string errors() const { return read_text(err_); }

 private:
  pid_t pid_ = -1;
  std::string out_, err_;
};

}  // namespace trainkit::test
