// Reads YAML from yaml-cpp's events, see Note [Strict configuration files] in config_file.cpp.
#include <yaml-cpp/depthguard.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <sstream>

#include "config/entry_builder.h"
#include "config/read_number.h"

namespace trainkit::detail {
namespace {

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
    begin(RawValue::Kind::kList, mark, tag, anchor);
  }
  void OnSequenceEnd() override { end(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    begin(RawValue::Kind::kMap, mark, tag, anchor);
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

  void begin(RawValue::Kind kind, const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    check(mark, tag, anchor);
    if (expects_key()) throw FileFault{"config.syntax", at(mark), "a key is not a scalar", "'name: value'"};
    builder_.begin(kind, at(mark));
    open_.push_back({kind == RawValue::Kind::kMap, kind == RawValue::Kind::kMap});
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
    builder_.scalar(plain ? plain_kind(text) : RawValue::Kind::kString, text, at(mark));
    value_done();
  }

  /// Returns the kind of an unquoted scalar in YAML 1.2's core schema. Only true and false are booleans, as in JSON.
  static RawValue::Kind plain_kind(const std::string& text) {
    if (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL") return RawValue::Kind::kNull;
    if (text == "true" || text == "false") return RawValue::Kind::kBool;
    return looks_like_number(text) ? RawValue::Kind::kNumber : RawValue::Kind::kString;
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

}  // namespace

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

}  // namespace trainkit::detail
