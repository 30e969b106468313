#pragma once
/// Runs a Python reference of tests/reference during a test.

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "test_util.h"

namespace trainkit::test {

/// Runs `script` (a file of tests/reference) with `arguments` and returns its output. Throws with its stderr if it
/// fails.
inline std::string run_reference(const std::string& script, const std::string& arguments = "") {
  const TempDir dir;
  const std::string command = python() + " " + TRAINKIT_REFERENCE_DIR + "/" + script + " " + arguments + " > " +
                              (dir / "out") + " 2> " + (dir / "err");
  const auto text = [&](const std::string& name) {
    std::ostringstream all;
    all << std::ifstream(dir / name).rdbuf();
    return all.str();
  };
  if (std::system(command.c_str()) != 0) throw std::runtime_error(script + " failed:\n" + text("err"));
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
