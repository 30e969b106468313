#pragma once
/// Demonstration data that many tests train on.

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "program.h"

namespace trainkit::test {

/// Copies the demonstration data of a trainer of build/bin to the new folder `to`. The trainer makes them once for all
/// tests and again when it has been linked again; they are kept in build/tests/demo_data.
inline void copy_demo_data(const std::string& program, const std::string& to) {
  namespace fs = std::filesystem;
  const fs::path executable = fs::path(TRAINKIT_BIN_DIR) / program;
  const fs::path folder = fs::path(TRAINKIT_BIN_DIR).parent_path() / "tests/demo_data" / program;
  const std::string linked = std::to_string(fs::last_write_time(executable).time_since_epoch().count());
  fs::create_directories(folder);
  struct Lock {  // tests run in parallel
    explicit Lock(const fs::path& file) : descriptor(open(file.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600)) {
      if (descriptor < 0 || flock(descriptor, LOCK_EX) != 0) throw std::runtime_error("cannot lock " + file.string());
    }
    ~Lock() { close(descriptor); }
    const int descriptor;
  } const lock(folder / "lock");
  if (!fs::exists(folder / linked)) {
    for (const auto& older : fs::directory_iterator(folder)) {
      if (older.is_directory()) fs::remove_all(older.path());
    }
    Program made(program, {"--make_demo_data", folder / "unfinished"}, folder.string());
    if (made.wait() != 0) throw std::runtime_error(made.errors());
    fs::rename(folder / "unfinished", folder / linked);
  }
  fs::copy(folder / linked, to, fs::copy_options::recursive);
}

}  // namespace trainkit::test
