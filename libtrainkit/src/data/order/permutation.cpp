#include "data/order/permutation.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#include "trainkit/core/random.h"
#include "trainkit/core/vectorized.h"

namespace trainkit {
namespace {

constexpr int64_t kBlock = 1024;  // cycle walking costs one extra pass per block, however few positions need it
constexpr int64_t kShuffledBelow = 257;

// Round function: 2 multiplications. Callers use the upper bits of the result, which depend on every bit of `x`.
[[gnu::always_inline]] inline uint32_t mix(uint32_t x) {
  x *= 0x9e3779b1u;
  x ^= x >> 15;
  return x * 0x85ebca77u;
}
[[gnu::always_inline]] inline uint64_t mix(uint64_t x) {
  x *= 0x9e3779b97f4a7c15ULL;
  x ^= x >> 32;
  return x * 0xd6e8feb86659fd93ULL;
}

template <class Word>
[[gnu::always_inline]] inline void feistel(Word* x, int64_t count, const uint64_t* round_keys, int left_bits,
                                           int right_bits) {
  constexpr int kBits = std::numeric_limits<Word>::digits;
  Word keys[KeyedPermutation::kRounds];
  for (int round = 0; round < KeyedPermutation::kRounds; ++round) keys[round] = static_cast<Word>(round_keys[round]);
  const Word right_mask = (Word{1} << right_bits) - 1;
  const int left_shift = kBits - left_bits, right_shift = kBits - right_bits;
  for (int64_t i = 0; i < count; ++i) {
    Word left = x[i] >> right_bits, right = x[i] & right_mask;
    for (int round = 0; round < KeyedPermutation::kRounds; round += 2) {
      left ^= mix(static_cast<Word>(right + keys[round])) >> left_shift;
      right ^= mix(static_cast<Word>(left + keys[round + 1])) >> right_shift;
    }
    x[i] = left << right_bits | right;
  }
}

TRAINKIT_VECTORIZED void rounds(uint32_t* x, int64_t count, const uint64_t* keys, int left_bits, int right_bits) {
  feistel(x, count, keys, left_bits, right_bits);
}
TRAINKIT_VECTORIZED void rounds(uint64_t* x, int64_t count, const uint64_t* keys, int left_bits, int right_bits) {
  feistel(x, count, keys, left_bits, right_bits);
}

// Fills one block: applies the network to all positions, then again to those outside [0, size), until none is left.
template <class Word>
void fill_block(int64_t size, int64_t begin, int64_t stride, std::span<int64_t> out, const uint64_t* keys,
                int left_bits, int right_bits) {
  Word x[kBlock], again[kBlock];
  uint16_t where[kBlock];
  const auto count = static_cast<int64_t>(out.size());
  const auto last = static_cast<Word>(size - 1);  // `size` itself does not fit into 32 bits if it is 2^32
  for (int64_t i = 0; i < count; ++i) x[i] = static_cast<Word>(begin + i * stride);
  rounds(x, count, keys, left_bits, right_bits);
  int64_t outside = 0;
  for (int64_t i = 0; i < count; ++i) {
    where[outside] = static_cast<uint16_t>(i);
    outside += x[i] > last;
  }
  for (int64_t j = 0; j < outside; ++j) again[j] = x[where[j]];
  while (outside > 0) {
    rounds(again, outside, keys, left_bits, right_bits);
    for (int64_t j = 0; j < outside; ++j) x[where[j]] = again[j];
    int64_t still_outside = 0;
    for (int64_t j = 0; j < outside; ++j) {
      const Word image = again[j];
      where[still_outside] = where[j];
      again[still_outside] = image;
      still_outside += image > last;
    }
    outside = still_outside;
  }
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<int64_t>(x[i]);
}

void fill_shuffled(int64_t size, uint64_t key, int64_t begin, int64_t stride, std::span<int64_t> out) {
  uint16_t order[kShuffledBelow];
  std::iota(order, order + size, uint16_t{0});
  RandomStream random(key);
  for (int64_t i = size - 1; i > 0; --i) std::swap(order[i], order[random.below(i + 1)]);
  for (size_t i = 0; i < out.size(); ++i) out[i] = order[begin + static_cast<int64_t>(i) * stride];
}

}  // namespace

KeyedPermutation::KeyedPermutation(int64_t size, uint64_t key) : size_(size), key_(key) {
  RandomStream random(key);
  for (uint64_t& round_key : round_keys_) round_key = random();
  const int bits = std::bit_width(static_cast<uint64_t>(std::max<int64_t>(size - 1, 3)));
  right_bits_ = bits / 2;
  left_bits_ = bits - right_bits_;
}

void KeyedPermutation::fill(int64_t begin, int64_t stride, std::span<int64_t> out) const {
  if (size_ < kShuffledBelow) return fill_shuffled(size_, key_, begin, stride, out);
  while (!out.empty()) {
    const auto block = out.first(std::min<size_t>(out.size(), kBlock));
    if (left_bits_ + right_bits_ <= 32) {
      fill_block<uint32_t>(size_, begin, stride, block, round_keys_.data(), left_bits_, right_bits_);
    } else {
      fill_block<uint64_t>(size_, begin, stride, block, round_keys_.data(), left_bits_, right_bits_);
    }
    out = out.subspan(block.size());
    if (!out.empty()) begin += stride * kBlock;
  }
}

int64_t KeyedPermutation::operator()(int64_t position) const {
  int64_t image = 0;
  fill(position, 1, {&image, 1});
  return image;
}

}  // namespace trainkit
