#pragma once
/// Tokens of the pieces of a text that threads have encoded.

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "trainkit/text/tokenizer.h"

namespace trainkit::detail {

// Note [One cache for all threads]
//
// Words repeat, and most of the time goes into those that are new. With a cache for each thread, every thread would
// encode every word once. So all threads share a table without locks. A piece has one place in it; a later piece with
// the same place replaces it.
//
// A place is a sequence lock. Its version is odd while a thread writes. A writer makes the version odd, stores the
// words with `release`, and makes the version even again. A reader loads the version, the words with `acquire`, and the
// version again: if one of the words is that of a later writer, the second version is later too, and the reader finds
// nothing.

/// Thread-safe. Holds views of the pieces: the text must outlive it.
class PieceCache {
 public:
  /// For a text of `bytes` bytes.
  explicit PieceCache(size_t bytes) : places_(std::bit_ceil(std::clamp(bytes / 16, kLeastPlaces, kMostPlaces))) {}

  /// Appends the tokens of `piece` to `out`. Returns false if it does not have them.
  bool find(std::string_view piece, std::vector<TokenId>& out) const {
    const Place& place = places_[index(piece)];
    const uint64_t version = place.version.load(std::memory_order_acquire);
    if (version % 2 == 1 || place.words[1].load(std::memory_order_acquire) >> 32 != piece.size()) return false;
    std::array<uint64_t, kWords> words;
    for (size_t i = 0; i < kWords; ++i) words[i] = place.words[i].load(std::memory_order_acquire);
    if (place.version.load(std::memory_order_relaxed) != version) return false;
    const auto* const text = std::bit_cast<const char*>(words[0]);
    if (std::string_view(text, static_cast<size_t>(words[1] >> 32)) != piece) return false;
    const auto count = static_cast<size_t>(words[1] & 0xffffffff);
    for (size_t i = 0; i < count; ++i) out.push_back(static_cast<TokenId>(words[2 + i / 2] >> (i % 2 * 32)));
    return true;
  }

  /// Keeps the tokens of `piece`, which is not empty, if they fit into a place.
  void insert(std::string_view piece, const TokenId* tokens, size_t count) {
    if (count > kMostTokens) return;
    Place& place = places_[index(piece)];
    uint64_t version = place.version.load(std::memory_order_relaxed);
    if (version % 2 == 1 || !place.version.compare_exchange_strong(version, version + 1)) return;
    std::array<uint64_t, kWords> words = {std::bit_cast<uint64_t>(piece.data()), uint64_t{piece.size()} << 32 | count};
    for (size_t i = 0; i < count; ++i) words[2 + i / 2] |= uint64_t{tokens[i]} << (i % 2 * 32);
    for (size_t i = 0; i < kWords; ++i) place.words[i].store(words[i], std::memory_order_release);
    place.version.store(version + 2, std::memory_order_release);
  }

  static constexpr size_t kMostTokens = 10;

 private:
  static constexpr size_t kLeastPlaces = 16, kMostPlaces = size_t{1} << 18;
  static constexpr size_t kWords = 2 + kMostTokens / 2;

  /// The address of the piece, its size and the number of its tokens, and two tokens in each further word.
  struct alignas(64) Place {
    std::atomic<uint64_t> version = 0;
    std::array<std::atomic<uint64_t>, kWords> words = {};
  };
  static_assert(sizeof(Place) == 64);

  size_t index(std::string_view piece) const { return std::hash<std::string_view>()(piece) & (places_.size() - 1); }

  std::vector<Place> places_;
};

}  // namespace trainkit::detail
