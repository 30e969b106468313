#pragma once
/// The smallest pair of files that GPT-2's tokenizer accepts, and invariants of every tokenizer.

#include <cstdio>
#include <string>
#include <utility>

#include "core/base/utf8.h"
#include "target.h"
#include "trainkit/text/tokenizer.h"

namespace trainkit::fuzz {

/// vocab.json and merges.txt: the 256 bytes, two merges and the end-of-text token.
inline std::pair<std::string, std::string> tiny_gpt2() {
  std::string vocab = "{";
  uint32_t next = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool shown = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    std::string name;
    append_utf8(name, shown ? byte : next++);
    vocab += (name == "\"" || name == "\\" ? "\"\\" : "\"") + name + "\":" + std::to_string(byte) + ",";
  }
  return {vocab + "\"he\":256,\"hel\":257,\"<|endoftext|>\":258}", "#version: 0.2\nh e\nhe l\n"};
}

/// The tokens of a text are in the vocabulary and decode to the text.
inline void check_tokenizer(const Tokenizer& tokenizer, std::string_view text) {
  const auto tokens = tokenizer.encode(text);
  if (!tokens.ok()) return require_named(tokens.status(), {"data.encoding", "data.tokens"});
  const auto decoded = tokenizer.decode(*tokens);
  require(decoded.ok() && *decoded == text, "the tokens decode to the text");
}

}  // namespace trainkit::fuzz
