#pragma once
/// Runs a Python reference of tests/reference during a test.

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "test_util.h"

namespace trainkit::test {

/// One Python for all references of a test program: importing PyTorch and transformers once takes seconds.
class ReferenceServer {
 public:
  ReferenceServer() {
    int ends[2];
    if (::pipe(ends) != 0) throw std::runtime_error("cannot create a pipe");
    ::fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    const std::string end = std::to_string(ends[1]);
    // "e": programs that a test starts later must not hold the pipe open, whose end stops the server.
    requests_ = ::popen((python() + " " + TRAINKIT_REFERENCE_DIR + "/serve.py " + end).c_str(), "we");
    ::close(ends[1]);
    replies_ = ::fdopen(ends[0], "r");
  }
  ~ReferenceServer() {
    ::pclose(requests_);
    std::fclose(replies_);
  }
  ReferenceServer(const ReferenceServer&) = delete;
  ReferenceServer& operator=(const ReferenceServer&) = delete;

  /// The exit status of a script whose output goes to the files `out` and `err`; -1 if Python itself ended.
  int run(const std::string& script, const std::string& arguments, const std::string& out, const std::string& err) {
    const nlohmann::json request = {std::string(TRAINKIT_REFERENCE_DIR) + "/" + script, arguments, out, err};
    std::fputs((request.dump() + "\n").c_str(), requests_);
    std::fflush(requests_);
    int status = -1;
    return std::fscanf(replies_, "%d", &status) == 1 ? status : -1;
  }

 private:
  FILE *requests_, *replies_;
};

/// Runs `script` (a file of tests/reference) with `arguments` and returns its output. Throws with its stderr if it
/// fails.
inline std::string run_reference(const std::string& script, const std::string& arguments = "") {
  static ReferenceServer server;
  const TempDir dir;
  const auto text = [&](const std::string& name) {
    std::ostringstream all;
    all << std::ifstream(dir / name).rdbuf();
    return all.str();
  };
  if (server.run(script, arguments, dir / "out", dir / "err") != 0) {
    throw std::runtime_error(script + " failed:\n" + text("err"));
  }
  return text("out");
}

/// The cells of lines of comma-separated values.
inline std::vector<std::vector<std::string>> parse_csv(const std::string& text) {
  std::vector<std::vector<std::string>> rows;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::vector<std::string> cells;
    std::istringstream row(line);
    for (std::string cell; std::getline(row, cell, ',');) cells.push_back(cell);
    rows.push_back(std::move(cells));
  }
  return rows;
}

}  // namespace trainkit::test
