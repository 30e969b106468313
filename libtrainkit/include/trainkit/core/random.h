#pragma once
/// Random numbers as a pure function of a key: independent of machine, thread and order of calls.

#include <cmath>
#include <cstdint>
#include <numbers>

namespace trainkit {

namespace detail {
/// Mixes 64 bits so that each output bit depends on each input bit.
/// Source: splitmix64's finaliser (Stafford's variant 13), https://prng.di.unimi.it/splitmix64.c
constexpr uint64_t mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// `unsigned __int128` is an extension of GCC and Clang; `__extension__` avoids a -Wpedantic warning in user code.
__extension__ typedef unsigned __int128 uint128;
}  // namespace detail

/// Combines several numbers into a key; the order matters: hash_key(seed, epoch, row).
template <class... Numbers>
constexpr uint64_t hash_key(Numbers... numbers) {
  uint64_t key = 0x9e3779b97f4a7c15ULL;
  ((key = detail::mix64(key + 0x9e3779b97f4a7c15ULL + static_cast<uint64_t>(numbers))), ...);
  return key;
}

/// A small counter-based generator (splitmix64). Create one per row: RandomStream(hash_key(seed, epoch, row)).
/// A copy starts at the same position. Satisfies UniformRandomBitGenerator. Not for cryptography.
class RandomStream {
 public:
  using result_type = uint64_t;
  explicit constexpr RandomStream(uint64_t key) : state_(key) {}

  static constexpr uint64_t min() { return 0; }
  static constexpr uint64_t max() { return ~uint64_t{0}; }
  constexpr uint64_t operator()() { return detail::mix64(state_ += 0x9e3779b97f4a7c15ULL); }

  /// Uniform in [0, n), n >= 1. Uses multiply-shift; the bias is below n / 2^64.
  constexpr uint64_t below(uint64_t n) {
    return static_cast<uint64_t>((static_cast<detail::uint128>((*this)()) * n) >> 64);
  }
  /// Uniform in [0, 1), 53 bits.
  constexpr double uniform() { return static_cast<double>((*this)() >> 11) * 0x1.0p-53; }
  /// Standard normal by the Box-Muller method. Consumes two numbers.
  double normal() {
    const double radius = std::sqrt(-2.0 * std::log1p(-uniform()));
    return radius * std::cos(2.0 * std::numbers::pi * uniform());
  }

 private:
  uint64_t state_;
};

}  // namespace trainkit
