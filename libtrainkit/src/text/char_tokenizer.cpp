#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/base/utf8.h"
#include "text/token_buffer.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/text/tokenizer.h"

namespace trainkit {
namespace {

constexpr TokenId kUnknown = ~TokenId{0};
constexpr uint32_t kLow = 1 << 16;
constexpr uint32_t kCodePoints = 0x110000;

absl::Status bad_characters(const std::string& problem) {
  return to_status({.exit_code = ExitCode::kData, .id = "data.vocabulary", .field = "characters", .problem = problem});
}

}  // namespace

absl::StatusOr<std::unique_ptr<CharTokenizer>> CharTokenizer::from_text(std::string_view text) {
  std::vector<bool> met(kCodePoints);
  for (size_t at = 0; at < text.size();) {
    uint32_t code_point = 0;
    const size_t length = decode_utf8(text.substr(at, 4), code_point);
    if (length == 0) return detail::invalid_utf8(text, at);
    met[code_point] = true;
    at += length;
  }
  std::vector<uint32_t> characters;
  for (uint32_t c = 0; c < kCodePoints; ++c) {
    if (met[c]) characters.push_back(c);
  }
  if (characters.empty()) {
    return to_status({.exit_code = ExitCode::kData, .id = "data.empty", .problem = "the text has no character"});
  }
  return std::unique_ptr<CharTokenizer>(new CharTokenizer(std::move(characters)));
}

absl::StatusOr<std::unique_ptr<CharTokenizer>> CharTokenizer::from_characters(std::vector<uint32_t> characters) {
  if (characters.empty()) return bad_characters("the list is empty");
  for (size_t i = 0; i < characters.size(); ++i) {
    const uint32_t c = characters[i];
    if (c >= kCodePoints || (c >= 0xd800 && c < 0xe000))
      return bad_characters(fmt::format("U+{:04X} is not a character", c));
    if (i > 0 && characters[i - 1] >= c) return bad_characters(fmt::format("U+{:04X} is not in ascending order", c));
  }
  return std::unique_ptr<CharTokenizer>(new CharTokenizer(std::move(characters)));
}

CharTokenizer::CharTokenizer(std::vector<uint32_t> characters)
    : characters_(std::move(characters)), bytes_(characters_.size()), low_ids_(kLow, kUnknown) {
  for (size_t id = 0; id < characters_.size(); ++id) {
    append_utf8(bytes_[id], characters_[id]);
    if (characters_[id] < kLow) low_ids_[characters_[id]] = static_cast<TokenId>(id);
  }
}

absl::Status CharTokenizer::encode(std::string_view text, const TokenSink& sink,
                                   const TokenizeProgress& progress) const {
  const auto id_of = [&](uint32_t c) -> TokenId {
    if (c < kLow) return low_ids_[c];
    const auto at = std::lower_bound(characters_.begin(), characters_.end(), c);
    return at != characters_.end() && *at == c ? static_cast<TokenId>(at - characters_.begin()) : kUnknown;
  };
  detail::TokenBuffer buffer(sink, progress, text.size());
  for (size_t at = 0; at < text.size();) {
    uint32_t code_point = 0;
    const size_t length = decode_utf8(text.substr(at, 4), code_point);
    if (length == 0) return detail::invalid_utf8(text, at);
    const TokenId id = id_of(code_point);
    if (id == kUnknown) {
      return to_status({.exit_code = ExitCode::kData,
                        .id = "data.tokens",
                        .where = fmt::format("@{:#x}", at),
                        .problem = "character outside the vocabulary",
                        .got = fmt::format("U+{:04X} '{}'", code_point, text.substr(at, length)),
                        .expected = fmt::format("one of the {} characters of the training text", characters_.size())});
    }
    buffer.tokens().push_back(id);
    at += length;
    TRAINKIT_RETURN_IF_ERROR(buffer.advance(at));
  }
  return buffer.flush(text.size());
}

std::string_view CharTokenizer::token_bytes(TokenId id) const {
  TORCH_CHECK_INDEX(id < bytes_.size(), "token ", id, " is outside the vocabulary of ", bytes_.size());
  return bytes_[id];
}

std::string CharTokenizer::to_json() const {
  std::string characters;
  for (const std::string& bytes : bytes_) characters += bytes;
  return nlohmann::json{{"type", "char"}, {"characters", characters}}.dump();
}

}  // namespace trainkit
