#pragma once
/// Runs a launcher's command line until it ends.

#include <sys/wait.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "test_util.h"

namespace trainkit::test {

inline std::string text_of(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

inline std::vector<std::string> lines_of(const std::string& path) {
  std::istringstream text(text_of(path));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

/// Runs `command` in a shell with its output in `<folder>/output`. Returns the exit code; 137 after two minutes.
/// Removes the variables of a launcher that runs this test.
inline int run_launcher(const std::string& command, const TempDir& folder) {
  const std::string clean =
      "env -u RANK -u WORLD_SIZE -u LOCAL_RANK -u LOCAL_WORLD_SIZE -u MASTER_ADDR -u MASTER_PORT ";
  const std::string line = clean + "timeout -s KILL 120 " + command + " > " + (folder / "output") + " 2>&1 < /dev/null";
  const int status = std::system(line.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace trainkit::test
