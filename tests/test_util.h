#pragma once
/// Utilities for all tests.

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "temp_dir.h"
#include "trainkit/core/error.h"

/// Ends the test case as skipped (CTest reports the whole file as skipped: put such cases in a separate file).
#define TRAINKIT_SKIP(reason)                          \
  do {                                                 \
    std::cout << "skipped: " << (reason) << std::endl; \
    SUCCEED("skipped");                                \
    return;                                            \
  } while (false)

namespace trainkit::test {

/// The id of an error of this library, or empty.
inline std::string id_of(const absl::Status& status) { return error_of(status).value_or(Error{}).id; }

/// The lines of a text, without their ends.
inline std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

/// The value of an environment variable, or empty.
inline std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

/// Whether `./dev test --full` runs the long form of each test.
inline bool is_full() { return !environment("TRAINKIT_TEST_FULL").empty(); }

/// Folder with real data sets (TRAINKIT_TEST_DATA); if it is empty, the test is skipped.
inline std::string data_dir() { return environment("TRAINKIT_TEST_DATA"); }

/// A Python with torch (TRAINKIT_PYTHON), the reference of parity tests; if it is empty, the test is skipped.
inline std::string python() { return environment("TRAINKIT_PYTHON"); }
/// Whether the tests' Python has these modules ("peft transformers").
inline bool python_has(const std::string& modules) {
  const std::string code = "import importlib.util, sys; sys.exit(any(importlib.util.find_spec(m) is None for m in '" +
                           modules + "'.split()))";
  return !python().empty() && std::system((python() + " -c \"" + code + "\"").c_str()) == 0;
}

}  // namespace trainkit::test
