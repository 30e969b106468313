// Reads JSON from nlohmann's events, see Note [Strict configuration files] in config_file.cpp.
#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "config/entry_builder.h"
#include "core/base/strict_json.h"

namespace trainkit::detail {
namespace {

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

  bool null() override { return scalar(RawValue::Kind::kNull); }
  bool boolean(bool) override { return scalar(RawValue::Kind::kBool); }
  bool number_integer(number_integer_t) override { return scalar(RawValue::Kind::kNumber); }
  bool number_unsigned(number_unsigned_t) override { return scalar(RawValue::Kind::kNumber); }
  bool number_float(number_float_t, const string_t&) override { return scalar(RawValue::Kind::kNumber); }
  bool string(string_t& text) override {
    tokens_.next();
    builder_.scalar(RawValue::Kind::kString, text, tokens_.position());
    return true;
  }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return begin(RawValue::Kind::kMap); }
  bool start_array(size_t) override { return begin(RawValue::Kind::kList); }
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
      builder_.scalar(RawValue::Kind::kNumber, std::string(token), at);
      return false;
    }
    throw FileFault{"config.syntax", position_of(text_, std::min(offset, text_.size()) - (offset > 0)),
                    "not valid JSON: " + json_problem(fault)};
  }

 private:
  bool scalar(RawValue::Kind kind) {
    std::string text(tokens_.next());
    builder_.scalar(kind, kind == RawValue::Kind::kNull ? "" : std::move(text), tokens_.position());
    return true;
  }
  bool begin(RawValue::Kind kind) {
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

}  // namespace

void read_json(const std::string& text, EntryBuilder& builder) {
  JsonEvents events(text, builder);
  nlohmann::json::sax_parse(text, &events);
}

}  // namespace trainkit::detail
