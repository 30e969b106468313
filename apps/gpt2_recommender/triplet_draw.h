#pragma once
/// How a negative is drawn, for the CPU's vector code and for CUDA's kernel: both have the same bits. Plain C++17, for
/// nvcc reads it too.

#include <cstdint>

#ifdef __CUDACC__
#define TRAINKIT_DRAWS __host__ __device__ __forceinline__
#else
#define TRAINKIT_DRAWS [[gnu::always_inline]] inline
#endif

namespace trainkit::rec::detail {

/// Draws of a negative before the next item in number is taken that is none.
inline constexpr int kNegativeTries = 64;

/// What triplets are made of, in one device's memory.
struct TripletTables {
  /// User in the upper half, item in the lower one, of each row.
  const uint64_t* pairs = nullptr;
  uint32_t rows = 0;
  /// Whether a user has chosen an item: bits_per_user of each user, least significant first.
  const uint32_t* bits = nullptr;
  int64_t bits_per_user = 0;
  uint32_t num_items = 0;
  /// Items as often as they were chosen, instead of all alike.
  bool by_popularity = false;
};

/// Bits of a row's draw by a key. 32 of them bias a choice among n by n / 2^32.
/// Source of the mixing: MurmurHash3's 32-bit finaliser.
TRAINKIT_DRAWS uint32_t row_bits(uint32_t row, uint32_t low, uint32_t high) {
  uint32_t x = (row * 0x9e3779b1u) ^ low;
  x ^= x >> 16;
  x *= 0x85ebca6bu;
  x ^= (x >> 13) + high;
  x *= 0xc2b2ae35u;
  return x ^ (x >> 16);
}

TRAINKIT_DRAWS uint32_t scale_to(uint32_t bits, uint32_t n) { return static_cast<uint32_t>(uint64_t{bits} * n >> 32); }

TRAINKIT_DRAWS uint64_t mix_bits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// The key of a row's draw number `attempt` >= 1: hash_key(key, attempt) of core/random.h, which nvcc does not read.
/// The first draw is by the key itself.
TRAINKIT_DRAWS uint64_t attempt_key(uint64_t key, uint64_t attempt) {
  constexpr uint64_t kStep = 0x9e3779b97f4a7c15ULL;
  return mix_bits(mix_bits(kStep + kStep + key) + kStep + attempt);
}

TRAINKIT_DRAWS bool is_chosen(const TripletTables& tables, uint32_t user, uint32_t item) {
  const auto bit = static_cast<uint64_t>(user * tables.bits_per_user + item);
  return (tables.bits[bit / 32] >> (bit % 32) & 1) != 0;
}

/// The negative of a row by the key of its seed and epoch.
TRAINKIT_DRAWS uint32_t draw_negative(const TripletTables& tables, uint32_t row, uint64_t key) {
  const auto user = static_cast<uint32_t>(tables.pairs[row] >> 32);
  uint32_t item = 0;
  for (int attempt = 0; attempt < kNegativeTries; ++attempt) {
    const uint64_t own = attempt == 0 ? key : attempt_key(key, static_cast<uint64_t>(attempt));
    const uint32_t bits = row_bits(row, static_cast<uint32_t>(own), static_cast<uint32_t>(own >> 32));
    item = tables.by_popularity ? static_cast<uint32_t>(tables.pairs[scale_to(bits, tables.rows)])
                                : scale_to(bits, tables.num_items);
    if (!is_chosen(tables, user, item)) return item;
  }
  do {
    item = (item + 1) % tables.num_items;
  } while (is_chosen(tables, user, item));
  return item;
}

/// Starts the CUDA kernel that makes `count` triplets of `rows` by `keys` on `stream` (a cudaStream_t); all pointers,
/// of the tables too, are to the memory of the current device. Returns the cudaError_t of the launch.
int launch_draw_triplets(const TripletTables& tables, const int64_t* rows, const int64_t* keys, int64_t count,
                         int64_t* users, int64_t* positives, int64_t* negatives, void* stream);

}  // namespace trainkit::rec::detail
