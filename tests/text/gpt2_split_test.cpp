#include "text/gpt2_split.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <set>

#include "core/base/utf8.h"
#include "test_util.h"
#include "trainkit/text/tokenizer.h"

using namespace trainkit;
using trainkit::detail::find_cut;
using trainkit::detail::piece_length;

namespace {

constexpr std::string_view kSpecial = Gpt2Tokenizer::kEndOfText;

/// Ends of the pieces of `text`, in which `special` is a piece.
std::vector<size_t> piece_ends(std::string_view text, std::string_view special) {
  std::vector<size_t> ends;
  for (size_t at = 0; at < text.size();) {
    const size_t next = special.empty() ? text.npos : text.find(special, at);
    for (const std::string_view part = text.substr(0, next); at < part.size();)
      ends.push_back(at += piece_length(part, at));
    if (next != text.npos) ends.push_back(at = next + special.size());
  }
  return ends;
}

/// Texts of all classes of characters: Latin, Greek, Chinese and Devanagari letters, marks, numbers, white space of one
/// and more bytes, emoji, contractions, and whole and broken special tokens.
std::string random_text(std::mt19937& dice, const std::vector<std::string>& words, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += words[dice() % words.size()];
  return text;
}

const std::vector<std::string> kNasty = {
    "a",       "b",      "s",         "t",      "re",     "ve",         "ll",     "'",      "'s",
    "'re",     "'",      "\u00e9",    "\u03b1", "\u4e2d", "\u0915",     "\u093e", "1",      "23",
    "\u0663",  "\u2167", " ",         "  ",     "\n",     "\r\n",       "\t",     "\u00a0", "\u2003",
    "\u3000",  ".",      "!?",        "<",      "|>",     "\U0001F600", "\u200d", "\u0301", std::string(kSpecial),
    "<|endof", "text|>", "endoftext", "\x03"};

}  // namespace

TEST_CASE("A text is cut only where its pieces are cut, and both sides keep their pieces", "[text][tokenizer]") {
  std::mt19937 dice(1);
  size_t cuts = 0;
  const std::vector<std::string> no_spaces = {"a", "\u4e2d", "1", "'", "s", ".", std::string(kSpecial), "\u0301"};
  for (int i = 0; i < 6'000; ++i) {
    const std::string text = random_text(dice, i % 3 == 0 ? no_spaces : kNasty, 1 + static_cast<int>(dice() % 24));
    for (const std::string_view special : {kSpecial, std::string_view()}) {
      const auto ends = piece_ends(text, special);
      for (size_t at = 0; at < text.size(); ++at) {
        const auto cut = find_cut(text, at, text.size(), special);
        if (!cut) continue;
        ++cuts;
        INFO(escape_text(text) << " cut at " << *cut << " of " << at);
        REQUIRE(*cut > at);
        const auto first = std::find(ends.begin(), ends.end(), *cut);
        REQUIRE(first != ends.end());
        std::vector<size_t> both = piece_ends(std::string_view(text).substr(0, *cut), special);
        for (const size_t end : piece_ends(std::string_view(text).substr(*cut), special)) both.push_back(*cut + end);
        REQUIRE(both == ends);
      }
    }
  }
  CHECK(cuts > 100'000);
}

TEST_CASE("Every text without a long piece can be cut, whatever its characters are", "[text][tokenizer]") {
  // Only "'" before letters, and runs of one class, have no cut.
  CHECK(find_cut("aaaa", 0, 4, {}) == std::nullopt);
  CHECK(find_cut("a'b", 1, 3, {}) == std::nullopt);
  CHECK(find_cut("'s's's", 0, 6, {}) == 2u);
  CHECK(find_cut("\u4e2d\u6587\u3002\u4e2d", 0, 12, {}) == 6u);
  CHECK(find_cut("a<|endoftext|>b", 2, 15, kSpecial) == 14u);
  CHECK(find_cut("a<|endoftext|>b", 2, 15, {}) == 3u);
  CHECK(find_cut("a b", 0, 1, {}) == std::nullopt);
  CHECK(find_cut("\xa4\xa4"
                 "a1",
                 0, 4, {}) == 3u);  // begins within a character
  CHECK(find_cut("a\xff"
                 "1 a",
                 0, 5, {}) == std::nullopt);
}
