#include "text/piece_cache.h"

#include <atomic>
#include <thread>

#include "test_util.h"

using trainkit::TokenId;
using trainkit::detail::PieceCache;

namespace {

/// Pieces of four equal letters, and their tokens, which tell the pieces apart.
struct Pieces {
  Pieces() {
    for (char letter = '!'; letter < '{'; ++letter) text += std::string(4, letter);
    for (size_t at = 0; at < text.size(); at += 4) {
      pieces.push_back(std::string_view(text).substr(at, 4));
      const auto letter = static_cast<TokenId>(text[at]);
      tokens.push_back({letter, letter + 1000, letter + 2000, letter + 3000});
    }
  }
  std::string text;
  std::vector<std::string_view> pieces;
  std::vector<std::vector<TokenId>> tokens;
};

}  // namespace

TEST_CASE("A piece is found with its tokens until another one takes its place", "[text][piece_cache]") {
  const Pieces all;
  PieceCache cache(1 << 20);
  std::vector<TokenId> found = {7};
  CHECK(!cache.find(all.pieces[0], found));
  int kept = 0;
  for (size_t i = 0; i < all.pieces.size(); ++i) {
    cache.insert(all.pieces[i], all.tokens[i].data(), all.tokens[i].size());
    REQUIRE(cache.find(std::string(all.pieces[i]), found));  // by its text, not by its address
    found.erase(found.begin());
    CHECK(found == all.tokens[i]);
    found = {7};
  }
  for (const std::string_view piece : all.pieces) kept += cache.find(piece, found);
  CHECK(kept > 50);
  const std::vector<TokenId> many(PieceCache::kMostTokens + 1, 1);
  PieceCache other(1 << 20);
  other.insert("long", many.data(), many.size());
  CHECK(!other.find("long", found));
}

TEST_CASE("Threads that replace each other's pieces find no tokens of another piece", "[text][piece_cache]") {
  const Pieces all;
  PieceCache cache(0);  // its few places are replaced all the time
  std::atomic<int64_t> found = 0, wrong = 0;
  std::vector<std::thread> threads;
  for (size_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      std::vector<TokenId> tokens;
      for (size_t i = 0; i < 50'000; ++i) {
        const size_t k = (i * (2 * thread + 1) + i / 7) % all.pieces.size();
        tokens.clear();
        if (cache.find(all.pieces[k], tokens)) {
          ++found;
          wrong += tokens != all.tokens[k];
        } else {
          wrong += !tokens.empty();
          cache.insert(all.pieces[k], all.tokens[k].data(), all.tokens[k].size());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(found > 0);
}
