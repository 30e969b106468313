#pragma once
/// A shuffle that is computed, not stored.

#include <array>
#include <cstdint>
#include <span>

namespace trainkit {

/// A permutation of 0 .. size-1 chosen by a 64-bit key: the image of any position in O(1) time and memory.
///
/// A Feistel network of six rounds on the smallest power of two that is not below `size`; an image outside is sent
/// through the network again until it falls inside ("cycle walking", twice on average at worst). Evaluated 256
/// positions at a time, so that the compiler's vector code does several at once. Up to 256 elements, where a network
/// this small is visibly biased, the permutation is shuffled by Fisher and Yates, at O(size) per call. Sources: Luby
/// and Rackoff 1988 (the network), Black and Rogaway 2002 (cycle walking). Uniformity of places, of neighbours and of
/// differences is tested (tests/data/permutation_test.cpp). Not for cryptography.
class KeyedPermutation {
 public:
  /// size >= 0.
  KeyedPermutation(int64_t size, uint64_t key);

  int64_t size() const { return size_; }
  /// Images of begin, begin + stride, begin + 2 stride, ...; all of them in [0, size).
  void fill(int64_t begin, int64_t stride, std::span<int64_t> out) const;
  int64_t operator()(int64_t position) const;

  static constexpr int kRounds = 6;

 private:
  int64_t size_;
  uint64_t key_;
  std::array<uint64_t, kRounds> round_keys_;
  int left_bits_ = 0, right_bits_ = 0;
};

}  // namespace trainkit
