#pragma once
/// Vectors of sixteen numbers, for functions marked TRAINKIT_VECTORIZED. The compiler maps each operation to the
/// processor's vector instructions.

#include <bit>
#include <cstdint>
#include <cstring>

#include "trainkit/core/vectorized.h"

namespace trainkit::detail {

inline constexpr int64_t kLanes = 16;

using Floats = float __attribute__((vector_size(kLanes * 4)));
using Words = uint32_t __attribute__((vector_size(kLanes * 4)));
using Signs = int32_t __attribute__((vector_size(kLanes * 4)));
using Halves = uint16_t __attribute__((vector_size(kLanes * 2)));

// Loads and stores of kLanes values or of one value. A bfloat16 (uint16_t) is the upper half of a float.
TRAINKIT_INLINE void load(const float* from, Floats& to) { std::memcpy(&to, from, sizeof to); }
TRAINKIT_INLINE void load(const uint16_t* from, Floats& to) {
  Halves halves;
  std::memcpy(&halves, from, sizeof halves);
  to = reinterpret_cast<Floats>(__builtin_convertvector(halves, Words) << 16);
}
TRAINKIT_INLINE void load(const float* from, float& to) { to = *from; }
TRAINKIT_INLINE void load(const uint16_t* from, float& to) {
  to = std::bit_cast<float>(static_cast<uint32_t>(*from) << 16);
}
TRAINKIT_INLINE void store(const Floats& value, float* to) { std::memcpy(to, &value, sizeof value); }
/// Rounds to the nearest bfloat16, ties to even, as c10::BFloat16 does.
TRAINKIT_INLINE void store(const Floats& value, uint16_t* to) {
  const auto bits = reinterpret_cast<Words>(value);
  const Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const Signs is_number = value == value;
  const Halves halves = __builtin_convertvector(is_number ? rounded : Words{} + 0x7fc0u, Halves);
  std::memcpy(to, &halves, sizeof halves);
}
TRAINKIT_INLINE void store(float value, float* to) { *to = value; }
TRAINKIT_INLINE void store(float value, uint16_t* to) {
  const auto bits = std::bit_cast<uint32_t>(value);
  *to = value == value ? static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16) : uint16_t{0x7fc0};
}

TRAINKIT_INLINE float sum_of(const Floats& x) {
  float sum = 0;
  for (int64_t k = 0; k < kLanes; ++k) sum += x[k];
  return sum;
}

/// Computes x *= 2^n, with n in the low bits of `shifted` = n + 1.5 2^23.
TRAINKIT_INLINE void scale_by_power(const Floats& shifted, Floats& x) {
  const Words exponent = (reinterpret_cast<Words>(shifted) - (0x4b400000u - 127u)) << 23;
  x *= reinterpret_cast<Floats>(exponent);
}
TRAINKIT_INLINE void scale_by_power(float shifted, float& x) {
  x *= std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) - (0x4b400000u - 127u)) << 23);
}

/// Computes e^x for x <= 0, accurate to 2 units in the last place; about 1e-38 below -87. NaN stays NaN. Source: expf
/// of Cephes: 2^n times a polynomial on [-ln(2)/2, ln(2)/2]. @tparam Number Floats or float. Has no branches, so the
/// compiler vectorises a loop over it.
template <typename Number>
TRAINKIT_INLINE void exp_of(Number& x) {
  x = x < -87.0f ? Number{} - 87.0f : x;
  const Number shifted = x * 1.44269504088896341f + 12582912.0f;  // rounds to an integer in the low bits
  const Number n = shifted - 12582912.0f;
  const Number r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  x = Number{} + 1.9875691500e-4f;
  x = x * r + 1.3981999507e-3f;
  x = x * r + 8.3334519073e-3f;
  x = x * r + 4.1665795894e-2f;
  x = x * r + 1.6666665459e-1f;
  x = x * r + 5.0000001201e-1f;
  x = x * r * r + r + 1.0f;
  scale_by_power(shifted, x);
}

}  // namespace trainkit::detail
