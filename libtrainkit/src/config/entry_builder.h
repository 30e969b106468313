#pragma once
/// What the readers of YAML and JSON share: positions, faults, and the entries that they build.

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/raw_value.h"

namespace trainkit::detail {

inline constexpr size_t kMaxDepth = 16;  // two levels are valid; deeper ones are parsed for a better message

struct Position {
  int line = 1, column = 1;
};

/// A fault in the file's text, thrown out of a parser's callback.
struct FileFault {
  std::string id;
  Position at;
  std::string problem;
  std::string expected = {};
  std::string hint = {};
};

/// Converts an offset to a position. Columns count bytes, as in compilers.
inline Position position_of(std::string_view text, size_t offset) {
  Position at;
  for (const char c : text.substr(0, offset)) {
    ++at.column;
    if (c == '\n') ++at.line, at.column = 1;
  }
  return at;
}

/// Builds the entries of the root from a parser's events, for both formats.
class EntryBuilder {
 public:
  void begin(RawValue::Kind kind, Position at) {
    if (depth_ == 0 && kind != RawValue::Kind::kMap) refuse_root(at);
    has_root_ = true;
    if (++depth_ > kMaxDepth) {
      throw FileFault{"config.syntax", at, "nested too deeply", "at most " + std::to_string(kMaxDepth) + " levels"};
    }
    if (depth_ > 1) add(RawValue{.kind = kind, .line = at.line, .column = at.column});
  }
  void end() { --depth_; }

  /// Adds a scalar that is not a key.
  void scalar(RawValue::Kind kind, std::string text, Position at) {
    if (depth_ == 0 && kind == RawValue::Kind::kNull) return;  // equivalent to an empty file
    if (depth_ == 0) refuse_root(at);
    add(RawValue{.kind = kind, .text = std::move(text), .line = at.line, .column = at.column});
  }

  /// Adds a key of the root. Keys of nested mappings are ignored.
  void key(std::string text, Position at) {
    if (depth_ == 1) entries_.push_back({.key = std::move(text), .line = at.line, .column = at.column});
  }

  /// Whether the file has content other than comments.
  bool has_root() const { return has_root_; }
  std::vector<FileEntry> take() { return std::move(entries_); }

 private:
  [[noreturn]] static void refuse_root(Position at) {
    throw FileFault{"config.type", at, "the file is not a mapping", "lines of 'name: value'"};
  }

  /// Keeps values of the root and elements of its lists. Deeper values are never valid, so only their parent is kept.
  void add(RawValue value) {
    const bool opens = value.kind == RawValue::Kind::kList || value.kind == RawValue::Kind::kMap;
    const size_t level = opens ? depth_ - 1 : depth_;
    if (level == 1) {
      FileEntry& entry = entries_.back();
      entry.value = std::move(value);
      // yaml-cpp reports a missing value at the position of the next key.
      if (entry.value.line != entry.line && entry.value.kind == RawValue::Kind::kNull) {
        entry.value.line = entry.line;
        entry.value.column = entry.column;
      }
    } else if (level == 2 && entries_.back().value.kind == RawValue::Kind::kList) {
      entries_.back().value.items.push_back(std::move(value));
    }
  }

  size_t depth_ = 0;
  bool has_root_ = false;
  std::vector<FileEntry> entries_;
};

/// Reads the text of a file. Throws FileFault. See Note [Strict configuration files] in config_file.cpp.
void read_yaml(std::string text, EntryBuilder& builder);
void read_json(const std::string& text, EntryBuilder& builder);

}  // namespace trainkit::detail
