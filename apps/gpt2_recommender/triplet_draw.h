#pragma once
/// Draws a negative, for the CPU and for the CUDA kernel, with identical bits. Plain C++17, since nvcc compiles it too.

#include <cstdint>

#ifdef __CUDACC__
#define TRAINKIT_DRAWS __host__ __device__ __forceinline__
#else
#define TRAINKIT_DRAWS [[gnu::always_inline]] inline
#endif

namespace trainkit::rec::detail {

// Note [Negative draw]
//
// The negative of a row is a function of (seed, epoch, row), so that it does not depend on workers, ranks, batches or
// devices, and a run can resume at any row. key = hash_key(seed, epoch).
//
// 1. Try i (0 <= i < kNegativeTries) uses the key itself for i = 0, else attempt_key(key, i). row_bits mixes it with
//    the row to 32 bits. scale_to maps them to an item (uniform), or to a row of the data set whose item is taken
//    (popularity).
// 2. The first item that the user has not chosen is the negative.
// 3. If every try fails, the next higher item number that the user has not chosen is taken, with wrap-around.
//    TripletDataset::create guarantees that there is one, so the loop ends.
//
// Two implementations must agree bit for bit: draw_negative() for one row (CUDA and DeviceTriplets on the CPU), and
// TripletDataset::draw_items() for blocks of rows, which vectorises. Tests compare them.

/// Tries before the next free item number is taken.
inline constexpr int kNegativeTries = 64;

/// Tables that triplets are made from, in the memory of one device.
struct TripletTables {
  /// User (upper half) and item (lower half) of each row.
  const uint64_t* pairs = nullptr;
  uint32_t rows = 0;
  /// Bit `item` of a user is set if the user has chosen it. bits_per_user bits per user, least significant first.
  const uint32_t* bits = nullptr;
  int64_t bits_per_user = 0;
  uint32_t num_items = 0;
  /// Draw items with the frequency with which they were chosen, instead of uniformly.
  bool by_popularity = false;
};

/// Returns the random bits of a row for the key (low, high). With 32 bits a choice among n has a bias of at most
/// n / 2^32. Source of the mixing: MurmurHash3's 32-bit finaliser.
TRAINKIT_DRAWS uint32_t row_bits(uint32_t row, uint32_t low, uint32_t high) {
  uint32_t x = (row * 0x9e3779b1u) ^ low;
  x ^= x >> 16;
  x *= 0x85ebca6bu;
  x ^= (x >> 13) + high;
  x *= 0xc2b2ae35u;
  return x ^ (x >> 16);
}

/// Maps 32 random bits to 0..n - 1.
TRAINKIT_DRAWS uint32_t scale_to(uint32_t bits, uint32_t n) { return static_cast<uint32_t>(uint64_t{bits} * n >> 32); }

TRAINKIT_DRAWS uint64_t mix_bits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// Returns the key of try `attempt` >= 1: hash_key(key, attempt) of core/random.h, repeated here because nvcc cannot
/// compile that header. Try 0 uses the key itself.
TRAINKIT_DRAWS uint64_t attempt_key(uint64_t key, uint64_t attempt) {
  constexpr uint64_t kStep = 0x9e3779b97f4a7c15ULL;
  return mix_bits(mix_bits(kStep + kStep + key) + kStep + attempt);
}

TRAINKIT_DRAWS bool is_chosen(const TripletTables& tables, uint32_t user, uint32_t item) {
  const auto bit = static_cast<uint64_t>(user * tables.bits_per_user + item);
  return (tables.bits[bit / 32] >> (bit % 32) & 1) != 0;
}

/// Returns the negative of a row for the key of its seed and epoch. See Note [Negative draw].
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

/// Starts the CUDA kernel that makes `count` triplets from `rows` and `keys` on `stream` (a cudaStream_t). All
/// pointers, also those of `tables`, point to memory of the current device. Asynchronous. Returns the cudaError_t of
/// the launch.
int launch_draw_triplets(const TripletTables& tables, const int64_t* rows, const int64_t* keys, int64_t count,
                         int64_t* users, int64_t* positives, int64_t* negatives, void* stream);

}  // namespace trainkit::rec::detail
