#pragma once
/// Represents values of settings before an option converts them to its type.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "trainkit/config/config.h"

namespace trainkit::detail {

/// A value as written. Values of flags are kText, which converts to any type. Values of files have the kind given by
/// YAML 1.2 or JSON.
struct RawValue {
  enum class Kind { kText, kNull, kBool, kNumber, kString, kList, kMap };
  Kind kind = Kind::kText;
  /// Text of a scalar, unquoted.
  std::string text = {};
  /// Elements of a list.
  std::vector<RawValue> items = {};
  /// Position in its file, from 1.
  int line = 0, column = 0;
};

/// Reason for rejecting a value. `wrong_type` selects cli.value or config.type; otherwise the id is config.value (a
/// broken rule).
struct Fault {
  std::string problem = {};
  std::string got = {};
  std::string expected = {};
  std::string hint = {};
  bool wrong_type = true;
  /// Position of the faulty list element, if it comes from a file.
  int line = 0, column = 0;
};

/// A key of a configuration file and its value.
struct FileEntry {
  std::string key = {};
  RawValue value = {};
  int line = 0, column = 0;
};

/// Reads the mapping at the root of a YAML file, or of a JSON file if the name ends in ".json". Keys are unchanged and
/// in file order; duplicates are possible.
absl::StatusOr<std::vector<FileEntry>> read_config_file(const std::string& path);

/// Formats "<path>:<line>:<column>".
std::string file_position(const std::string& path, int line, int column);

/// Joins words: "a, b or c" with `between` = ", " and `last` = " or ".
std::string join(const std::vector<std::string>& words, const char* between, const char* last);

/// Removes ".", "//" and ".." from `path`. Returns it unchanged if a ".." after a symbolic link would then lead
/// elsewhere. Reads the file system.
std::string plain_path(const std::filesystem::path& path);

/// Formats `text` as a YAML string scalar, quoted if necessary.
std::string yaml_string(const std::string& text);

}  // namespace trainkit::detail
