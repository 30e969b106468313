#include "trainkit/text/tokenizer.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/base/strict_json.h"
#include "core/base/utf8.h"
#include "text/token_buffer.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/io/mapped_file.h"

namespace trainkit {

absl::Status detail::invalid_utf8(std::string_view text, size_t offset) {
  const auto byte = static_cast<unsigned char>(text[offset]);
  return to_status({.exit_code = ExitCode::kData,
                    .id = "data.encoding",
                    .where = fmt::format("@{:#x}", offset),
                    .problem = "not UTF-8",
                    .got = fmt::format("byte {:#04x}", byte),
                    .expected = "UTF-8 text",
                    .hint = text.starts_with("\x1f\x8b") ? "the file is compressed: unpack it first"
                            : text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff")
                                ? "the file is UTF-16: convert it with iconv"
                                : "convert the file with iconv"});
}

absl::StatusOr<std::vector<TokenId>> Tokenizer::encode(std::string_view text) const {
  std::vector<TokenId> tokens;
  const TokenSink gather = [&](std::span<const TokenId> some) {
    tokens.insert(tokens.end(), some.begin(), some.end());
    return absl::OkStatus();
  };
  TRAINKIT_RETURN_IF_ERROR(encode(text, gather));
  return tokens;
}

absl::StatusOr<std::string> Tokenizer::decode(std::span<const TokenId> ids) const {
  std::string text;
  for (TokenId id : ids) {
    if (id >= vocab_size()) {
      return to_status({.exit_code = ExitCode::kData,
                        .id = "data.tokens",
                        .problem = "token outside the vocabulary",
                        .got = std::to_string(id),
                        .expected = fmt::format("0..{}", vocab_size() - 1)});
    }
    text += token_bytes(id);
  }
  return text;
}

std::string Tokenizer::digest() const { return Digest::of(to_json()); }

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  for (;;) {
    const size_t valid = find_invalid_utf8(text);
    out += text.substr(0, valid);
    if (valid == text.size()) return out;
    append_utf8(out, 0xfffd);
    text.remove_prefix(valid + 1);
  }
}

std::optional<TokenId> document_end_token(const Tokenizer& tokenizer) {
  if (const auto* gpt2 = dynamic_cast<const Gpt2Tokenizer*>(&tokenizer)) return gpt2->end_of_text();
  for (int64_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (tokenizer.token_bytes(static_cast<TokenId>(id)) == std::string_view(&kDocumentEnd, 1)) {
      return static_cast<TokenId>(id);
    }
  }
  return std::nullopt;
}

std::vector<int64_t> token_characters(const Tokenizer& tokenizer) {
  std::vector<int64_t> characters(static_cast<size_t>(tokenizer.vocab_size()));
  for (size_t id = 0; id < characters.size(); ++id) {
    const std::string_view bytes = tokenizer.token_bytes(static_cast<TokenId>(id));
    characters[id] = std::count_if(bytes.begin(), bytes.end(), [](char c) { return (c & 0xc0) != 0x80; });
  }
  if (const auto end = document_end_token(tokenizer)) characters[*end] = 0;
  return characters;
}

absl::Status save_tokenizer(const Tokenizer& tokenizer, const std::string& path) {
  return write_file_atomically(Fs::posix(), path, tokenizer.to_json());
}

absl::StatusOr<std::unique_ptr<Tokenizer>> load_tokenizer(const std::string& path) {
  TRAINKIT_ASSIGN_OR_RETURN(const auto file, MappedFile::open(path));
  const Error blame{.exit_code = ExitCode::kData,
                    .id = "data.vocabulary",
                    .where = path,
                    .expected = "a file that save_tokenizer wrote"};
  const auto bad = [&](const std::string& problem) {
    Error error = blame;
    error.problem = problem;
    return to_status(error);
  };
  TRAINKIT_ASSIGN_OR_RETURN(const nlohmann::json json, detail::parse_strict_json(file->text(), blame));
  if (!json.is_object() || !json.contains("type")) return bad("not a tokenizer");
  if (json["type"] == "char" && json.contains("characters") && json["characters"].is_string()) {
    const std::string characters = json["characters"];
    std::vector<uint32_t> code_points;
    for (size_t at = 0; at < characters.size();) {
      uint32_t code_point = 0;
      at += decode_utf8(std::string_view(characters).substr(at), code_point);  // valid: the JSON parser checked it
      code_points.push_back(code_point);
    }
    return CharTokenizer::from_characters(std::move(code_points));
  }
  if (json["type"] == "gpt2" && json.contains("vocab") && json["vocab"].is_string() && json.contains("merges") &&
      json["merges"].is_string() && json.contains("special_tokens") && json["special_tokens"].is_boolean()) {
    return Gpt2Tokenizer::parse(json["vocab"].get_ref<const std::string&>(),
                                json["merges"].get_ref<const std::string&>(), path, path,
                                {.special_tokens = json["special_tokens"].get<bool>()});
  }
  return bad("unknown type of tokenizer");
}

}  // namespace trainkit
