#pragma once
// Arrays in the fake device's memory, and helpers shared by the cases of the test.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "fake_device.h"
#include "nn/gpu/gpu_kernels.h"

using trainkit::detail::Number;
using trainkit::detail::Numbers;

constexpr Numbers kNumbers[] = {{Number::kFloat, Number::kFloat},
                                {Number::kFloat, Number::kBFloat16},
                                {Number::kFloat, Number::kHalf},
                                {Number::kBFloat16, Number::kBFloat16},
                                {Number::kHalf, Number::kHalf}};

inline int failures = 0;

#define CHECK(condition, ...)                                \
  do {                                                       \
    if (!(condition) && ++failures < 40) {                   \
      printf("%s:%d: %s: ", __FILE__, __LINE__, #condition); \
      printf(__VA_ARGS__);                                   \
      printf("\n");                                          \
    }                                                        \
  } while (false)

inline size_t bytes_of(Number number) { return number == Number::kFloat ? 4 : 2; }

/// Relative distance of neighbouring values.
inline double epsilon_of(Number number) {
  return number == Number::kFloat ? 0x1p-23 : number == Number::kHalf ? 0x1p-10 : 0x1p-7;
}

inline float rounded(Number number, float x) {
  if (number == Number::kBFloat16) return __bfloat162float(__float2bfloat16_rn(x));
  if (number == Number::kHalf) return __half2float(__float2half_rn(x));
  return x;
}

/// An allocation of `count` numbers.
class Values {
 public:
  Values(Number number, size_t count)
      : number_(number), count_(count), address_(fake::allocate(count * bytes_of(number))) {}

  static Values random(Number number, size_t count, unsigned seed, float scale = 1) {
    Values values(number, count);
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal(0, scale);
    for (size_t i = 0; i < count; ++i) values.set(i, normal(generator));
    return values;
  }

  void* address() const { return address_; }
  float* floats() const { return static_cast<float*>(address_); }
  size_t count() const { return count_; }
  size_t bytes() const { return count_ * bytes_of(number_); }
  const std::byte* data() const { return static_cast<const std::byte*>(fake::bytes_of(address_)); }

  void set(size_t i, float x) {
    void* bytes = fake::bytes_of(address_);
    if (number_ == Number::kFloat) static_cast<float*>(bytes)[i] = x;
    if (number_ == Number::kBFloat16) static_cast<__nv_bfloat16*>(bytes)[i] = __float2bfloat16_rn(x);
    if (number_ == Number::kHalf) static_cast<__half*>(bytes)[i] = __float2half_rn(x);
  }
  double operator[](size_t i) const {
    const void* bytes = fake::bytes_of(address_);
    if (number_ == Number::kFloat) return static_cast<const float*>(bytes)[i];
    if (number_ == Number::kBFloat16) return __bfloat162float(static_cast<const __nv_bfloat16*>(bytes)[i]);
    return __half2float(static_cast<const __half*>(bytes)[i]);
  }

  /// Compares with a reference, within a few units of the dtype and of float32.
  void expect(const std::vector<double>& reference, const char* what, double units = 1.5,
              double absolute = 2e-5) const {
    for (size_t i = 0; i < reference.size(); ++i) {
      const double error = std::abs((*this)[i] - reference[i]);
      const double allowed = absolute + std::abs(reference[i]) * (units * epsilon_of(number_) + 1e-5);
      if (error <= allowed) continue;
      CHECK(error <= allowed, "%s[%zu] = %g, not %g", what, i, (*this)[i], reference[i]);
      return;
    }
  }

 private:
  Number number_;
  size_t count_;
  void* address_;
};

/// An allocation of `count` integers.
template <typename T>
struct Items {
  explicit Items(const std::vector<T>& values) : Items(values.size()) {
    memcpy(fake::bytes_of(address), values.data(), count * sizeof(T));
  }
  explicit Items(size_t count) : address(static_cast<T*>(fake::allocate(count * sizeof(T)))), count(count) {}
  T operator[](size_t i) const { return static_cast<const T*>(fake::bytes_of(address))[i]; }
  const std::byte* data() const { return static_cast<const std::byte*>(fake::bytes_of(address)); }
  size_t bytes() const { return count * sizeof(T); }

  T* address;
  size_t count;
};

/// The bits of a case's results, which do not depend on the order of threads.
using Bits = std::vector<std::byte>;

template <typename... Arrays>
Bits bits_of(const Arrays&... arrays) {
  Bits bits;
  (bits.insert(bits.end(), arrays.data(), arrays.data() + arrays.bytes()), ...);
  return bits;
}

struct Area {
  const void* begin;
  size_t bytes;
};

/// Checks that all launches so far wrote (or read) exactly these areas, and clears the list of launches if they wrote.
void expect_accesses(const std::vector<Area>& areas, bool writes, const char* what);
void forget_launches();
void expect_no_findings(const char* what);

// The cases. Each one first fills the free memory.
Bits norm_case(Numbers numbers, int64_t rows, int64_t width, bool has_added, bool has_bias);
Bits norm_gradient_case(Numbers numbers, int64_t rows, int64_t width, bool has_added, bool has_bias);
Bits gelu_case(Numbers numbers, int64_t rows, int64_t width, bool by_tanh);
Bits gelu_gradient_case(Numbers numbers, int64_t rows, int64_t width, bool by_tanh);
Bits cross_entropy_case(Numbers numbers, int64_t rows, int64_t classes, bool is_shifted);
Bits gather_case(int64_t bands, bool has_orientations);
Bits triplets_case(bool by_popularity);
Bits norm_of_list_case(bool is_shifted);
Bits unscale_case(bool is_shifted, bool has_infinity);
Bits cast_case(bool is_shifted, bool to_bfloat16);
Bits copy_case(bool is_shifted, float condition);
Bits adam_case(bool is_shifted, bool decouples_decay, bool is_skipped);
Bits embedding_case(int64_t width, int64_t distinct);
