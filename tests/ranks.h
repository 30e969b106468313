#pragma once
/// Ranks of a job as child processes, launched as torchrun would.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "fast_start/start_program.h"
#include "free_port.h"

namespace trainkit::test {

/// The processes of one job. Each rank's output is in FOLDER/rank<r>.out and .err. The destructor kills those still
/// running.
class Ranks {
 public:
  Ranks(const std::string& program, int count, const std::vector<std::string>& arguments, std::string folder)
      : folder_(std::move(folder)) {
    const std::string port = std::to_string(free_port());
    for (int rank = 0; rank < count; ++rank) start(program, rank, count, port, arguments);
  }
  ~Ranks() {
    for (size_t rank = 0; rank < pids_.size(); ++rank) {
      if (codes_[rank] >= 0) continue;
      kill(static_cast<int>(rank), SIGKILL);
      ::waitpid(pids_[rank], nullptr, 0);
    }
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  void kill(int rank, int signal) { ::kill(pids_[static_cast<size_t>(rank)], signal); }

  /// The exit code of `rank`, or 256 + the signal that killed it; -1 if it is still running after `limit`.
  int wait(int rank, std::chrono::seconds limit = std::chrono::seconds(120)) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    int& code = codes_[static_cast<size_t>(rank)];
    while (code < 0 && std::chrono::steady_clock::now() < deadline) {
      int status = 0;
      if (::waitpid(pids_[static_cast<size_t>(rank)], &status, WNOHANG) > 0) {
        code = WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    }
    return code;
  }
  std::vector<int> wait_all() {
    std::vector<int> codes;
    for (size_t rank = 0; rank < pids_.size(); ++rank) codes.push_back(wait(static_cast<int>(rank)));
    return codes;
  }
  std::string err(int rank) const { return read(folder_ + "/rank" + std::to_string(rank) + ".err"); }
  std::string out(int rank) const { return read(folder_ + "/rank" + std::to_string(rank) + ".out"); }

 private:
  static std::string read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }

  void start(const std::string& program, int rank, int count, const std::string& port,
             std::vector<std::string> arguments) {
    std::map<std::string, std::string> mine{{"RANK", std::to_string(rank)},
                                            {"LOCAL_RANK", std::to_string(rank)},
                                            {"WORLD_SIZE", std::to_string(count)},
                                            {"LOCAL_WORLD_SIZE", std::to_string(count)},
                                            {"MASTER_ADDR", "127.0.0.1"},
                                            {"MASTER_PORT", port},
                                            {"OMP_NUM_THREADS", "1"}};
    std::vector<std::string> environment;
    for (char** variable = environ; *variable; ++variable) {
      const std::string text = *variable;
      if (!mine.count(text.substr(0, text.find('=')))) environment.push_back(text);
    }
    for (const auto& [name, value] : mine) environment.push_back(name + "=" + value);
    arguments.insert(arguments.begin(), std::string(TRAINKIT_BIN_DIR) + "/" + program);
    const std::string base = folder_ + "/rank" + std::to_string(rank);
    const pid_t pid = start_program({arguments, environment, base + ".out", base + ".err"});
    pids_.push_back(pid);
    codes_.push_back(-1);
  }

  std::string folder_;
  std::vector<pid_t> pids_;
  std::vector<int> codes_;
};

}  // namespace trainkit::test
