#pragma once
/// Files of a source, written and opened as a checkpoint does it.

#include <map>
#include <string>
#include <vector>

#include "temp_dir.h"
#include "test_util.h"
#include "trainkit/core/fs.h"

namespace trainkit::test {

/// Writes the only file of a source, and opens it as load_files() gets it.
inline std::map<std::string, ReadableFile> written(const TempDir& dir, const std::vector<PendingFile>& files) {
  const Directory folder = Fs::posix().open_directory(dir.path()).value();
  WritableFile file = folder.create_file("file").value();
  REQUIRE(files.size() == 1);
  REQUIRE(files[0].write(file) == absl::OkStatus());
  CHECK(file.size_bytes() == files[0].bytes);
  REQUIRE(file.close().ok());
  std::map<std::string, ReadableFile> opened;
  opened.emplace(files[0].name, folder.open_file("file").value());
  return opened;
}

}  // namespace trainkit::test
