#include "data/order/permutation.h"

#include <cmath>
#include <limits>

#include "test_util.h"
#include "trainkit/core/random.h"

namespace trainkit {
namespace {

std::vector<int64_t> images(int64_t size, uint64_t key) {
  std::vector<int64_t> out(size);
  KeyedPermutation(size, key).fill(0, 1, out);
  return out;
}

// Deviation of the chi-square of `counts` from its mean, in standard deviations, if all cells are equally likely.
double chi_square_sigmas(const std::vector<int64_t>& counts, double expected) {
  double chi_square = 0;
  for (const int64_t count : counts) chi_square += (count - expected) * (count - expected) / expected;
  const double degrees = static_cast<double>(counts.size()) - 1;
  return (chi_square - degrees) / std::sqrt(2 * degrees);
}

TEST_CASE("KeyedPermutation contains each number once, at any size", "[data][permutation]") {
  for (int64_t size = 0; size < 1200; size = size < 600 ? size + 1 : size + 37) {
    auto out = images(size, 42 + size);
    std::sort(out.begin(), out.end());
    for (int64_t i = 0; i < size; ++i) REQUIRE(out[i] == i);
  }
}

TEST_CASE("KeyedPermutation is one-to-one beyond 32 bits", "[data][permutation]") {
  const int64_t size = (int64_t{1} << 40) + 12345;
  const KeyedPermutation permutation(size, 3);
  std::vector<int64_t> out(100000);
  permutation.fill(size - 100000, 1, out);
  CHECK(std::all_of(out.begin(), out.end(), [&](int64_t image) { return image >= 0 && image < size; }));
  CHECK(permutation(size - 1) == out.back());
  // Spread over the whole range, not close to the original position.
  CHECK(std::count_if(out.begin(), out.end(), [&](int64_t image) { return image < size / 2; }) > 49000);
  std::sort(out.begin(), out.end());
  CHECK(std::adjacent_find(out.begin(), out.end()) == out.end());
}

TEST_CASE("KeyedPermutation is one-to-one at the edge of every width", "[data][permutation]") {
  const int64_t size = GENERATE((int64_t{1} << 16), (int64_t{1} << 31) - 1, (int64_t{1} << 31), (int64_t{1} << 31) + 1,
                                (int64_t{1} << 32) - 1, (int64_t{1} << 32), (int64_t{1} << 32) + 1, (int64_t{1} << 53),
                                (int64_t{1} << 62) + 1, std::numeric_limits<int64_t>::max());
  INFO("size " << size);
  const KeyedPermutation permutation(size, 3);
  std::vector<int64_t> out(4000);
  permutation.fill(0, 1, std::span(out).first(2000));
  permutation.fill(size - 2000, 1, std::span(out).last(2000));
  CHECK(std::all_of(out.begin(), out.end(), [&](int64_t image) { return image >= 0 && image < size; }));
  CHECK(permutation(size - 1) == out.back());
  const auto lower = std::count_if(out.begin(), out.end(), [&](int64_t image) { return image < size / 2; });
  CHECK(std::abs(static_cast<double>(lower) - 2000) < 5 * std::sqrt(1000.0));
  std::sort(out.begin(), out.end());
  CHECK(std::adjacent_find(out.begin(), out.end()) == out.end());
}

TEST_CASE("KeyedPermutation gives every order of a tiny set equally often", "[data][permutation]") {
  std::map<std::vector<int64_t>, int64_t> seen;
  const int64_t trials = 24 * 2000;
  for (int64_t key = 0; key < trials; ++key) ++seen[images(4, hash_key(key, 5))];
  REQUIRE(seen.size() == 24);
  std::vector<int64_t> counts;
  for (const auto& [order, count] : seen) counts.push_back(count);
  CHECK(std::abs(chi_square_sigmas(counts, 2000)) < 5);
}

// The next three statistics use many keys, because a run uses one key per epoch. The sizes are just below and above
// powers of two and four, with the smallest networks, where weaknesses show first.
TEST_CASE("KeyedPermutation sends each position to every other equally often", "[data][permutation]") {
  const int64_t size = GENERATE(7, 64, 257, 300, 512, 513, 1000, 1024);
  const int64_t keys = 40 * size;
  std::vector<int64_t> of_first(size), of_middle(size), of_last(size);
  for (int64_t key = 0; key < keys; ++key) {
    const KeyedPermutation permutation(size, hash_key(1, key));
    ++of_first[permutation(0)];
    ++of_middle[permutation(size / 2)];
    ++of_last[permutation(size - 1)];
  }
  INFO("size " << size);
  CHECK(std::abs(chi_square_sigmas(of_first, 40)) < 5);
  CHECK(std::abs(chi_square_sigmas(of_middle, 40)) < 5);
  CHECK(std::abs(chi_square_sigmas(of_last, 40)) < 5);
}

TEST_CASE("KeyedPermutation gives equally likely differences of neighbours", "[data][permutation]") {
  const int64_t size = GENERATE(300, 512, 1000, 4096, 5000);
  const int64_t stride = GENERATE(1, 2, 16, 128);
  const int64_t keys = 400;
  std::vector<int64_t> differences(size - 1);
  for (int64_t key = 0; key < keys; ++key) {
    const auto out = images(size, hash_key(2, key));
    for (int64_t i = 0; i + stride < size; ++i) ++differences[(out[i + stride] - out[i] + size) % size - 1];
  }
  INFO("size " << size << ", stride " << stride);
  CHECK(std::abs(chi_square_sigmas(differences, static_cast<double>(keys * (size - stride)) / (size - 1.0))) < 6);
}

TEST_CASE("KeyedPermutation is different for keys that differ in one bit", "[data][permutation]") {
  const int64_t size = 2000;
  for (int bit = 0; bit < 64; bit += 7) {
    const auto one = images(size, 99), other = images(size, 99 ^ (uint64_t{1} << bit));
    int64_t fixed = 0;
    for (int64_t i = 0; i < size; ++i) fixed += one[i] == other[i];
    CHECK(fixed < 10);  // 1 is expected
  }
}

TEST_CASE("KeyedPermutation has as many cycles as a random permutation", "[data][permutation]") {
  const int64_t size = 1000, keys = 300;
  double cycles = 0;
  for (int64_t key = 0; key < keys; ++key) {
    const auto out = images(size, hash_key(3, key));
    std::vector<bool> seen(size);
    for (int64_t i = 0; i < size; ++i) {
      if (seen[i]) continue;
      ++cycles;
      for (int64_t at = i; !seen[at]; at = out[at]) seen[at] = true;
    }
  }
  // Harmonic number of 1000, 7.485; its standard deviation is 2.42.
  CHECK(std::abs(cycles / keys - 7.485) < 5 * 2.42 / std::sqrt(keys));
}

}  // namespace
}  // namespace trainkit
