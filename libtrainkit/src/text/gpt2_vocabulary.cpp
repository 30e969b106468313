#include "text/gpt2_vocabulary.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>

#include "core/base/strict_json.h"
#include "core/base/utf8.h"
#include "trainkit/core/data_error.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

/// Character that represents each byte in GPT-2's files: printable bytes represent themselves, the others use U+0100
/// and up.
///
/// Source: bytes_to_unicode in openai/gpt-2, src/encoder.py.
constexpr std::array<uint32_t, 256> kByteCharacters = [] {
  std::array<uint32_t, 256> table = {};
  uint32_t next = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    table[byte] = printable ? byte : next++;
  }
  return table;
}();

/// Inverse of kByteCharacters. -1 for a character that represents no byte.
constexpr std::array<int, 324> kCharacterBytes = [] {
  std::array<int, 324> table = {};
  for (int& byte : table) byte = -1;
  for (int byte = 0; byte < 256; ++byte) table[kByteCharacters[byte]] = byte;
  return table;
}();

/// Converts the characters of `word` to bytes. nullopt if a character is not in the table.
std::optional<std::string> to_bytes(std::string_view word) {
  std::string bytes;
  while (!word.empty()) {
    uint32_t code_point = 0;
    const size_t length = decode_utf8(word, code_point);
    if (length == 0 || code_point >= kCharacterBytes.size() || kCharacterBytes[code_point] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kCharacterBytes[code_point]));
    word.remove_prefix(length);
  }
  return bytes;
}

std::string to_characters(std::string_view bytes) {
  std::string word;
  for (unsigned char byte : bytes) append_utf8(word, kByteCharacters[byte]);
  return word;
}

/// Parses {"token": id, ...} and rejects duplicate keys, of which nlohmann's DOM parser would keep the last.
class VocabReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::unordered_map<std::string, int64_t> ids;
  std::string problem;
  std::string got;

  bool start_object(size_t) override { return ++depth_ == 1 || fail("an id is not a number", "an object"); }
  bool end_object() override { return true; }
  bool start_array(size_t) override {
    return depth_ == 0 ? fail("not an object of tokens and ids", "a list") : fail("an id is not a number", "a list");
  }
  bool end_array() override { return true; }
  bool key(std::string& name) override {
    key_ = name;
    return !ids.contains(name) || fail("token listed twice", name);
  }
  bool number_integer(int64_t value) override { return add(value, std::to_string(value)); }
  bool number_unsigned(uint64_t value) override {
    const bool fits = value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    return add(fits ? static_cast<int64_t>(value) : -1, std::to_string(value));
  }
  bool number_float(double, const std::string& text) override { return add(-1, text); }
  bool null() override { return not_a_number("null"); }
  bool boolean(bool value) override { return not_a_number(value ? "true" : "false"); }
  bool string(std::string& value) override { return not_a_number(value); }
  bool binary(nlohmann::json::binary_t&) override { return not_a_number("binary"); }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) override {
    return fail("not JSON", fmt::format("a fault at byte {}", position));
  }

 private:
  bool fail(const std::string& what, const std::string& value) {
    problem = what;
    got = value;
    return false;
  }
  bool not_a_number(const std::string& value) {
    return fail(depth_ == 0 ? "not an object of tokens and ids" : "an id is not a number", value);
  }
  bool add(int64_t id, const std::string& text) {
    if (depth_ == 0) return not_a_number(text);
    if (id < 0 || id > std::numeric_limits<int32_t>::max()) return fail("not an id", text);
    ids.emplace(key_, id);
    return true;
  }

  int depth_ = 0;
  std::string key_;
};

class Parser {
 public:
  Parser(const std::string& vocab_path, const std::string& merges_path)
      : vocab_path_(vocab_path), merges_path_(merges_path) {}

  absl::Status parse_vocab(std::string_view json) {
    VocabReader reader;
    if (detail::holds_nul(json)) return vocab_error("not JSON", "a NUL byte", "{\"token\": id, ...}", "");
    if (!nlohmann::json::sax_parse(json, &reader)) {
      const bool swapped = json.starts_with("#version") || json.starts_with("\u0120 t");
      return vocab_error(reader.problem, reader.got, "{\"token\": id, ...}",
                         swapped ? "this looks like the merges: are --vocab and --merges swapped?" : "");
    }
    const auto count = static_cast<int64_t>(reader.ids.size());
    std::vector<const std::string*> words(count, nullptr);
    for (const auto& [word, id] : reader.ids) {
      if (id >= count) {
        return vocab_error("the ids have a gap", fmt::format("id {} among {} tokens", id, count),
                           fmt::format("0..{}, each once", count - 1));
      }
      if (words[id]) return vocab_error("two tokens have one id", std::to_string(id), "each id once");
      words[id] = &word;
    }
    vocabulary_.tokens.resize(count);
    for (int64_t id = 0; id < count; ++id) {
      TRAINKIT_RETURN_IF_ERROR(add_token(*words[id], static_cast<TokenId>(id)));
    }
    return check_vocab();
  }

  absl::Status parse_merges(std::string_view text) {
    if (text.starts_with("{")) {
      return merges_error(1, "not a list of merges", "JSON", "two tokens per line",
                          "this looks like the vocabulary: are --vocab and --merges swapped?");
    }
    std::vector<bool> made(vocabulary_.tokens.size());
    for (int64_t line = 1; !text.empty(); ++line) {
      const size_t end = std::min(text.find('\n'), text.size());
      std::string_view words = text.substr(0, end);
      text.remove_prefix(std::min(end + 1, text.size()));
      if (words.ends_with('\r')) words.remove_suffix(1);
      if (line == 1 && words.starts_with("#version")) {
        if (words != "#version: 0.2") return merges_error(line, "unknown version", words, "#version: 0.2");
        continue;
      }
      if (words.empty() && text.empty()) break;
      TRAINKIT_RETURN_IF_ERROR(add_merge(words, line, made));
    }
    if (vocabulary_.merges.empty())
      return merges_error(1, "there are no merges", "an empty file", "two tokens per line");
    return absl::OkStatus();
  }

  Gpt2Vocabulary take() { return std::move(vocabulary_); }

 private:
  absl::Status vocab_error(const std::string& problem, std::string_view got, const std::string& expected,
                           const std::string& hint = "") const {
    return data_error("data.vocabulary", {.file = vocab_path_}, problem, got.substr(0, 80), expected, hint);
  }
  absl::Status merges_error(int64_t line, const std::string& problem, std::string_view got, const std::string& expected,
                            const std::string& hint = "") const {
    return data_error("data.merges", {.file = merges_path_, .line = line}, problem, got.substr(0, 80), expected, hint);
  }

  absl::Status add_token(const std::string& word, TokenId id) {
    if (word == Gpt2Tokenizer::kEndOfText) {
      vocabulary_.tokens[id] = word;
      vocabulary_.end_of_text = id;
      has_end_of_text_ = true;
      return absl::OkStatus();
    }
    auto bytes = to_bytes(word);
    if (!bytes || bytes->empty()) {
      return vocab_error("a token has a character that represents no byte", word, "GPT-2's 256 byte characters");
    }
    ids_.emplace(*bytes, id);
    vocabulary_.tokens[id] = std::move(*bytes);
    return absl::OkStatus();
  }

  absl::Status check_vocab() {
    if (!has_end_of_text_) return vocab_error("no token <|endoftext|>", "none", "one");
    for (int byte = 0; byte < 256; ++byte) {
      const auto at = ids_.find(std::string(1, static_cast<char>(byte)));
      if (at == ids_.end()) {
        return vocab_error("no token for a byte", fmt::format("{:#04x}", byte), "one for each of the 256 bytes");
      }
      vocabulary_.byte_ids[byte] = at->second;
    }
    return absl::OkStatus();
  }

  absl::Status add_merge(std::string_view words, int64_t line, std::vector<bool>& made) {
    const size_t space = words.find(' ');
    const bool two = space != std::string_view::npos && space > 0 && space + 1 < words.size() &&
                     words.find(' ', space + 1) == std::string_view::npos;
    if (!two) return merges_error(line, "not two tokens", words, "two tokens with a space between");
    const auto left = to_bytes(words.substr(0, space));
    const auto right = to_bytes(words.substr(space + 1));
    if (!left || !right) {
      return merges_error(line, "a character represents no byte", words, "GPT-2's 256 byte characters");
    }
    const auto left_id = ids_.find(*left);
    const auto right_id = ids_.find(*right);
    const auto both_id = ids_.find(*left + *right);
    if (left_id == ids_.end() || right_id == ids_.end() || both_id == ids_.end()) {
      return merges_error(line, "a token of this merge, or the one it makes, is not in the vocabulary", words,
                          "tokens of " + vocab_path_, "the merges belong to another vocabulary");
    }
    if (made[both_id->second]) return merges_error(line, "this token was made by an earlier merge", words, "each once");
    made[both_id->second] = true;
    vocabulary_.merges.emplace_back(left_id->second, right_id->second);
    vocabulary_.merged.push_back(both_id->second);
    return absl::OkStatus();
  }

  const std::string& vocab_path_;
  const std::string& merges_path_;
  Gpt2Vocabulary vocabulary_;
  std::unordered_map<std::string, TokenId> ids_;
  bool has_end_of_text_ = false;
};

}  // namespace

absl::StatusOr<Gpt2Vocabulary> parse_gpt2_vocabulary(std::string_view vocab_json, std::string_view merges,
                                                     const std::string& vocab_path, const std::string& merges_path) {
  Parser parser(vocab_path, merges_path);
  TRAINKIT_RETURN_IF_ERROR(parser.parse_vocab(vocab_json));
  TRAINKIT_RETURN_IF_ERROR(parser.parse_merges(merges));
  return parser.take();
}

std::string gpt2_vocab_json(const Gpt2Vocabulary& vocabulary) {
  std::string json = "{";
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const bool special = id == vocabulary.end_of_text;
    const std::string word = special ? vocabulary.tokens[id] : to_characters(vocabulary.tokens[id]);
    json += fmt::format("{}{}: {}", id == 0 ? "" : ", ", nlohmann::json(word).dump(), id);
  }
  return json + "}";
}

std::string gpt2_merges_text(const Gpt2Vocabulary& vocabulary) {
  std::string text = "#version: 0.2\n";
  for (const auto& [left, right] : vocabulary.merges) {
    text += fmt::format("{} {}\n", to_characters(vocabulary.tokens[left]), to_characters(vocabulary.tokens[right]));
  }
  return text;
}

}  // namespace trainkit::detail
