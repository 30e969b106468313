#include "core/machine/cgroup.h"

#include <fstream>
#include <sstream>

namespace trainkit::detail {
namespace {

// Returns whether the list "cpu,cpuacct" contains `name`.
bool names(const std::string& list, const std::string& name) {
  std::istringstream entries(list);
  for (std::string entry; std::getline(entries, entry, ',');) {
    if (entry == name) return true;
  }
  return false;
}

}  // namespace

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

void for_each_cgroup(const std::string& root, const std::string& membership, const std::string& controller,
                     const std::function<void(const std::string& folder, int version)>& visit) {
  std::istringstream lines(membership);
  for (std::string line; std::getline(lines, line);) {  // "0::/group" (version 2) or "4:cpu,cpuacct:/group"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string group = line.substr(second + 1);
    if (!controllers.empty() && !names(controllers, controller)) continue;
    const std::string mount = controllers.empty() ? root : root + "/" + controller;
    for (;;) {
      visit(mount + group, controllers.empty() ? 2 : 1);
      if (group.empty() || group == "/") break;
      group.resize(group.find_last_of('/'));
    }
  }
}

}  // namespace trainkit::detail
