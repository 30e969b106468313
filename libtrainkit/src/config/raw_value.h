#pragma once
/// What the sources of settings give, before an option makes a typed value of it.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "trainkit/config/config.h"

namespace trainkit::detail {

/// A value as it was written. A flag's is kText, which may become any type; a file's has the kind that YAML 1.2 and
/// JSON give it.
struct RawValue {
  enum class Kind { kText, kNull, kBool, kNumber, kString, kList, kMap };
  Kind kind = Kind::kText;
  /// The characters of a scalar, unquoted.
  std::string text = {};
  /// A list's elements.
  std::vector<RawValue> items = {};
  /// Where it begins in its file, from 1.
  int line = 0, column = 0;
};

/// Why a value cannot be taken. `wrong_type` parts cli.value/config.type from config.value (a rule of its own).
struct Fault {
  std::string problem = {};
  std::string got = {};
  std::string expected = {};
  std::string hint = {};
  bool wrong_type = true;
  /// The element of a list at fault, where a file has it.
  int line = 0, column = 0;
};

/// A key of a configuration file and its value.
struct FileEntry {
  std::string key = {};
  RawValue value = {};
  int line = 0, column = 0;
};

/// Reads the mapping at the root of a YAML file, or of a JSON file if its name ends in ".json". Keys are as written, in
/// the file's order; a key may stand twice.
absl::StatusOr<std::vector<FileEntry>> read_config_file(const std::string& path);

/// "<path>:<line>:<column>".
std::string file_position(const std::string& path, int line, int column);

/// "a, b or c" with `between` = ", " and `last` = " or ".
std::string join(const std::vector<std::string>& words, const char* between, const char* last);

/// True for what YAML 1.2's core schema reads as a number, unquoted, 0x10, .inf and .nan among them.
bool looks_like_number(const std::string& text);

/// `path` without ".", "//" and ".."; as it is where a ".." behind a link leads elsewhere than the letters say. Looks
/// at the disk.
std::string plain_path(const std::filesystem::path& path);

/// `text` as a YAML scalar that reads as a string, quoted where it has to be.
std::string yaml_string(const std::string& text);

}  // namespace trainkit::detail
