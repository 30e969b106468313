#pragma once
/// A shuffle that is computed instead of stored.

#include <array>
#include <cstdint>
#include <span>

namespace trainkit {

/// Permutes 0 .. size-1 by a 64-bit key. Computes the image of any position in O(1) time and memory.
///
/// Uses a Feistel network of six rounds on the smallest power of two >= `size`. An image outside the range goes through
/// the network again until it is inside ("cycle walking"; fewer than two passes on average). Blocks of 1024 positions
/// are evaluated together, so that the compiler vectorises them. Up to 256 elements, where such a small network is
/// visibly biased, uses a Fisher-Yates shuffle at O(size) per call. Sources: Luby and Rackoff 1988 (network), Black and
/// Rogaway 2002 (cycle walking). tests/data/order/permutation_test.cpp tests the uniformity of positions, neighbours
/// and differences. Not for cryptography.
class KeyedPermutation {
 public:
  /// Requires size >= 0.
  KeyedPermutation(int64_t size, uint64_t key);

  int64_t size() const { return size_; }
  /// Writes the images of begin, begin + stride, begin + 2 stride, ...; all positions must be in [0, size).
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
