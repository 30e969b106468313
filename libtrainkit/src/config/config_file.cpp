// Reads a configuration file as a flat list of keys and values.
//
// Note [Strict configuration files]
//
// YAML is read from yaml-cpp's events instead of its node graph, which hides errors: it keeps the first of two equal
// keys, follows cyclic aliases, reads 010 as 8, accepts invalid UTF-8 and ignores a second document. JSON is read from
// nlohmann's SAX events for the same reason. Those have no positions, so JsonTokens scans the same text in step with
// the parser.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yaml-cpp/depthguard.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/strict_json.h"
#include "core/unique_descriptor.h"
#include "core/utf8.h"
#include "raw_value.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

using Kind = RawValue::Kind;
constexpr size_t kMaxFileBytes = 1 << 20;  // configurations have a few kilobytes; yaml-cpp needs seconds for 50 MB
constexpr size_t kMaxDepth = 16;           // two levels are valid; deeper ones are parsed for a better message

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

absl::Status file_error(const std::string& path, const std::string& id, std::string problem, std::string got = {},
                        std::string expected = {}, std::string hint = {}) {
  return to_status({.exit_code = ExitCode::kConfig,
                    .id = id,
                    .where = path,
                    .field = {},
                    .problem = std::move(problem),
                    .got = std::move(got),
                    .expected = std::move(expected),
                    .hint = std::move(hint)});
}

absl::Status to_status_at(const std::string& path, const FileFault& fault) {
  return file_error(file_position(path, fault.at.line, fault.at.column), fault.id, fault.problem, {}, fault.expected,
                    fault.hint);
}

/// Converts an offset to a position. Columns count bytes, as in compilers.
Position position_of(std::string_view text, size_t offset) {
  Position at;
  for (const char c : text.substr(0, offset)) {
    ++at.column;
    if (c == '\n') ++at.line, at.column = 1;
  }
  return at;
}

absl::StatusOr<std::string> read_text(const std::string& path) {
  const auto failed = [&](const char* problem) { return file_error(path, "config.file", problem); };
  // O_NONBLOCK: opening a pipe without a writer would block forever.
  const detail::UniqueDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) return failed(std::strerror(errno));
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return failed(std::strerror(errno));
  if (S_ISDIR(info.st_mode)) return file_error(path, "config.file", "a folder", {}, "a YAML or JSON file");
  if (!S_ISREG(info.st_mode)) return file_error(path, "config.file", "not a regular file", {}, "a YAML or JSON file");
  std::string text;
  char chunk[16384];
  while (text.size() <= kMaxFileBytes) {
    const ssize_t count = ::read(file.get(), chunk, sizeof chunk);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return failed(std::strerror(errno));
    if (count == 0) break;
    text.append(chunk, static_cast<size_t>(count));
  }
  if (text.size() > kMaxFileBytes) {
    return file_error(path, "config.size", "too large for a configuration file",
                      std::to_string(info.st_size) + " bytes", "at most " + std::to_string(kMaxFileBytes));
  }
  return text;
}

/// Refuses bytes that are invalid in both formats, before a parser runs.
void check_bytes(std::string_view text) {
  if (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff") ||
      (text.size() > 1 && (text[0] == 0) != (text[1] == 0))) {
    throw FileFault{"config.encoding", {}, "looks like UTF-16", "UTF-8"};
  }
  if (const size_t at = find_invalid_utf8(text); at != text.size()) {
    throw FileFault{"config.encoding", position_of(text, at), "not valid UTF-8"};
  }
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const bool line_end = c == '\n' || (c == '\r' && i + 1 < text.size() && text[i + 1] == '\n');
    if (c < 0x20 && c != '\t' && !line_end) {
      throw FileFault{"config.encoding", position_of(text, i),
                      c == '\r' ? "a carriage return without a line feed" : "a control byte"};
    }
  }
}

void check_indentation(std::string_view text) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t word = std::min(text.find_first_not_of(" \t", begin), text.size());
    const size_t tab = text.substr(begin, word - begin).find('\t');
    const bool blank = word == text.size() || text[word] == '\n' || text[word] == '\r' || text[word] == '#';
    if (tab != std::string_view::npos && !blank) {
      throw FileFault{"config.syntax", position_of(text, begin + tab), "a tab in the indentation", "spaces"};
    }
    begin = std::min(text.find('\n', word), text.size() - 1) + 1;
  }
}

/// Builds the entries of the root from a parser's events, for both formats.
class EntryBuilder {
 public:
  void begin(Kind kind, Position at) {
    if (depth_ == 0 && kind != Kind::kMap) refuse_root(at);
    has_root_ = true;
    if (++depth_ > kMaxDepth) {
      throw FileFault{"config.syntax", at, "nested too deeply", "at most " + std::to_string(kMaxDepth) + " levels"};
    }
    if (depth_ > 1) add(RawValue{.kind = kind, .line = at.line, .column = at.column});
  }
  void end() { --depth_; }

  /// Adds a scalar that is not a key.
  void scalar(Kind kind, std::string text, Position at) {
    if (depth_ == 0 && kind == Kind::kNull) return;  // equivalent to an empty file
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
    const bool opens = value.kind == Kind::kList || value.kind == Kind::kMap;
    const size_t level = opens ? depth_ - 1 : depth_;
    if (level == 1) {
      FileEntry& entry = entries_.back();
      entry.value = std::move(value);
      // yaml-cpp reports a missing value at the position of the next key.
      if (entry.value.line != entry.line && entry.value.kind == Kind::kNull) {
        entry.value.line = entry.line;
        entry.value.column = entry.column;
      }
    } else if (level == 2 && entries_.back().value.kind == Kind::kList) {
      entries_.back().value.items.push_back(std::move(value));
    }
  }

  size_t depth_ = 0;
  bool has_root_ = false;
  std::vector<FileEntry> entries_;
};

// ---- YAML

class YamlEvents : public YAML::EventHandler {
 public:
  explicit YamlEvents(EntryBuilder& builder) : builder_(builder) {}

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (documents_++ > 0) throw FileFault{"config.syntax", at(mark), "a second document", "one"};
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override { value(mark, "?", anchor, ""); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { refuse_anchor(mark); }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& text) override {
    value(mark, tag, anchor, text);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    begin(Kind::kList, mark, tag, anchor);
  }
  void OnSequenceEnd() override { end(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    begin(Kind::kMap, mark, tag, anchor);
  }
  void OnMapEnd() override { end(); }

 private:
  static Position at(const YAML::Mark& mark) { return {mark.line + 1, mark.column + 1}; }

  [[noreturn]] static void refuse_anchor(const YAML::Mark& mark) {
    throw FileFault{"config.syntax", at(mark), "anchors and aliases are not supported", {}, "write the value out"};
  }

  static void check(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    if (anchor != 0) refuse_anchor(mark);
    if (!tag.empty() && tag != "?" && tag != "!") {
      throw FileFault{"config.syntax", at(mark), "tags are not supported (" + tag + ")"};
    }
  }

  void begin(Kind kind, const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    check(mark, tag, anchor);
    if (expects_key()) throw FileFault{"config.syntax", at(mark), "a key is not a scalar", "'name: value'"};
    builder_.begin(kind, at(mark));
    open_.push_back({kind == Kind::kMap, kind == Kind::kMap});
  }

  void end() {
    builder_.end();
    open_.pop_back();
    value_done();
  }

  void value(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, const std::string& text) {
    check(mark, tag, anchor);
    const bool plain = tag != "!";
    if (expects_key()) {
      if (plain && text == "<<") throw FileFault{"config.syntax", at(mark), "merge keys are not supported"};
      builder_.key(text, at(mark));
      open_.back().expects_key = false;
      return;
    }
    builder_.scalar(plain ? plain_kind(text) : Kind::kString, text, at(mark));
    value_done();
  }

  /// Returns the kind of an unquoted scalar in YAML 1.2's core schema. Only true and false are booleans, as in JSON.
  static Kind plain_kind(const std::string& text) {
    if (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL") return Kind::kNull;
    if (text == "true" || text == "false") return Kind::kBool;
    return looks_like_number(text) ? Kind::kNumber : Kind::kString;
  }

  bool expects_key() const { return !open_.empty() && open_.back().is_map && open_.back().expects_key; }
  void value_done() {
    if (!open_.empty() && open_.back().is_map) open_.back().expects_key = true;
  }

  struct Open {
    bool is_map;
    bool expects_key;
  };
  EntryBuilder& builder_;
  std::vector<Open> open_;
  int documents_ = 0;
};

void read_yaml(std::string text, EntryBuilder& builder) {
  check_indentation(text);
  // yaml-cpp 0.7 accepts an unclosed quote at the end of the last line. A comment as the last line prevents that and
  // changes nothing else.
  if (text.ends_with('\n')) text += '#';
  if (text.ends_with(' ') || text.ends_with('\t')) text += "\n#";
  try {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    YamlEvents events(builder);
    while (parser.HandleNextDocument(events)) {
    }
  } catch (const YAML::DeepRecursion& fault) {
    throw FileFault{"config.syntax", {fault.mark.line + 1, fault.mark.column + 1}, "nested too deeply"};
  } catch (const YAML::Exception& fault) {
    throw FileFault{"config.syntax", {fault.mark.line + 1, fault.mark.column + 1}, "not valid YAML: " + fault.msg};
  }
}

// ---- JSON

/// Finds the positions of the tokens of a JSON text that nlohmann's parser accepted.
class JsonTokens {
 public:
  explicit JsonTokens(std::string_view text) : text_(text) {}

  /// Returns the next token other than a comma or a colon.
  std::string_view next() {
    at_ = std::min(text_.find_first_not_of(" \t\r\n,:", at_), text_.size());
    begin_ = at_;
    if (at_ == text_.size()) return {};
    if (text_[at_] == '"') {
      do {
        at_ += text_[at_] == '\\' ? 2 : 1;
      } while (at_ < text_.size() && text_[at_] != '"');
      ++at_;
    } else if (std::strchr("{}[]", text_[at_])) {
      ++at_;
    } else {
      at_ = text_.find_first_of(" \t\r\n,:{}[]", at_);
    }
    at_ = std::min(at_, text_.size());
    return text_.substr(begin_, at_ - begin_);
  }

  /// Position of the token returned by next(). Linear over the whole file: it never goes back.
  Position position() {
    for (; counted_ < begin_; ++counted_) {
      ++position_.column;
      if (text_[counted_] == '\n') ++position_.line, position_.column = 1;
    }
    return position_;
  }

 private:
  std::string_view text_;
  size_t at_ = 0, begin_ = 0, counted_ = 0;
  Position position_;
};

class JsonEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  JsonEvents(std::string_view text, EntryBuilder& builder) : text_(text), tokens_(text), builder_(builder) {}

  bool null() override { return scalar(Kind::kNull); }
  bool boolean(bool) override { return scalar(Kind::kBool); }
  bool number_integer(number_integer_t) override { return scalar(Kind::kNumber); }
  bool number_unsigned(number_unsigned_t) override { return scalar(Kind::kNumber); }
  bool number_float(number_float_t, const string_t&) override { return scalar(Kind::kNumber); }
  bool string(string_t& text) override {
    tokens_.next();
    builder_.scalar(Kind::kString, text, tokens_.position());
    return true;
  }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return begin(Kind::kMap); }
  bool start_array(size_t) override { return begin(Kind::kList); }
  bool end_object() override { return end(); }
  bool end_array() override { return end(); }
  bool key(string_t& text) override {
    tokens_.next();
    builder_.key(text, tokens_.position());
    return true;
  }

  bool parse_error(size_t offset, const std::string&, const nlohmann::json::exception& fault) override {
    const std::string_view token = tokens_.next();
    const Position at = tokens_.position();
    // A number out of a double's range, and NaN and Infinity from other writers, are errors of the value, not of the
    // syntax.
    const bool is_name = token == "NaN" || token == "Infinity" || token == "-Infinity";
    const bool is_value = std::string_view(fault.what()).find("while parsing value") != std::string_view::npos;
    if (fault.id == 406 || (is_name && is_value)) {
      builder_.scalar(Kind::kNumber, std::string(token), at);
      return false;
    }
    throw FileFault{"config.syntax", position_of(text_, std::min(offset, text_.size()) - (offset > 0)),
                    "not valid JSON: " + json_problem(fault)};
  }

 private:
  bool scalar(Kind kind) {
    std::string text(tokens_.next());
    builder_.scalar(kind, kind == Kind::kNull ? "" : std::move(text), tokens_.position());
    return true;
  }
  bool begin(Kind kind) {
    tokens_.next();
    builder_.begin(kind, tokens_.position());
    return true;
  }
  bool end() {
    tokens_.next();
    builder_.end();
    return true;
  }

  std::string_view text_;
  JsonTokens tokens_;
  EntryBuilder& builder_;
};

void read_json(const std::string& text, EntryBuilder& builder) {
  JsonEvents events(text, builder);
  nlohmann::json::sax_parse(text, &events);
}

}  // namespace

std::string file_position(const std::string& path, int line, int column) {
  return line > 0 ? path + ":" + std::to_string(line) + ":" + std::to_string(column) : path;
}

std::string yaml_string(const std::string& text) {
  const auto is_word = [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-' || c == '.' || c == '/'; };
  const bool plain = !text.empty() && (std::isalpha(static_cast<unsigned char>(text[0])) || text[0] == '/') &&
                     std::all_of(text.begin(), text.end(), is_word) && text != "true" && text != "false" &&
                     text != "null" && text != "Null" && text != "NULL";
  return plain ? text : nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

absl::StatusOr<std::vector<FileEntry>> read_config_file(const std::string& path) {
  TRAINKIT_ASSIGN_OR_RETURN(std::string text, read_text(path));
  EntryBuilder builder;
  try {
    if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);
    check_bytes(text);
    const bool blank = text.find_first_not_of(" \t\r\n") == std::string::npos;
    if (!blank) path.ends_with(".json") ? read_json(text, builder) : read_yaml(std::move(text), builder);
  } catch (const FileFault& fault) {
    return to_status_at(path, fault);
  }
  if (!builder.has_root())
    return file_error(path, "config.empty", "no settings in the file", {}, "lines of 'name: value'");
  return builder.take();
}

}  // namespace trainkit::detail
