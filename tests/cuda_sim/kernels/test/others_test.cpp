// Cross-entropy, patches and triplets against references.
#include <algorithm>

#include "imagery/patch_gather.h"
#include "test_support.h"
#include "triplet_draw.h"

using namespace trainkit::detail;

Bits cross_entropy_case(Numbers numbers, int64_t rows, int64_t classes, bool is_shifted) {
  constexpr int64_t kIgnored = -100;
  const auto size = static_cast<size_t>(rows * classes), n = static_cast<size_t>(rows);
  const Values logits = Values::random(numbers.product, size, 14, 3);
  std::vector<int64_t> wanted(n);
  for (size_t r = 0; r < n; ++r) wanted[r] = r % 4 == 1 ? kIgnored : static_cast<int64_t>(r * 7) % classes;
  const Items<int64_t> target(wanted);
  const Values log_sums(Number::kFloat, 2 * n), losses(Number::kFloat, n), inverse_count(Number::kFloat, 1),
      loss(numbers.stream, 1);
  const CrossEntropyArguments a = {rows,           classes,           kIgnored,        logits.address(),
                                   target.address, log_sums.floats(), losses.floats(), inverse_count.floats(),
                                   loss.address()};
  CHECK(on_gpu::run(a, numbers, nullptr) == cudaSuccess, "cross entropy");
  expect_accesses({{log_sums.address(), log_sums.bytes()},
                   {losses.address(), losses.bytes()},
                   {inverse_count.address(), 4},
                   {loss.address(), loss.bytes()}},
                  true, "cross entropy");

  // Shifted by one number, gradients do not begin at the logits' 16-byte alignment.
  const size_t shift = is_shifted ? 1 : 0;
  const Values room(numbers.product, size + shift);
  void* const d_logits = static_cast<char*>(room.address()) + shift * bytes_of(numbers.product);
  Values d_loss(numbers.stream, 1);
  d_loss.set(0, 0.5f);
  const CrossEntropyGradientArguments b = {rows,
                                           classes,
                                           kIgnored,
                                           logits.address(),
                                           target.address,
                                           log_sums.floats(),
                                           inverse_count.floats(),
                                           d_loss.address(),
                                           d_logits};
  CHECK(on_gpu::run(b, numbers, nullptr) == cudaSuccess, "cross entropy gradient");

  double total = 0, counted = 0;
  std::vector<double> slopes(size), sums(n), kept(2 * n);
  for (size_t r = 0; r < n; ++r) {
    if (wanted[r] == kIgnored) continue;
    for (int64_t c = 0; c < classes; ++c) sums[r] += std::exp(logits[r * classes + c]);
    sums[r] = std::log(sums[r]);
    kept[2 * r] = logits[r * classes];
    for (int64_t c = 1; c < classes; ++c) kept[2 * r] = std::max(kept[2 * r], logits[r * classes + c]);
    kept[2 * r + 1] = sums[r] - kept[2 * r];
    total += sums[r] - logits[r * classes + wanted[r]];
    counted += 1;
  }
  for (size_t i = 0; i < size; ++i) {
    const size_t r = i / classes;
    if (wanted[r] == kIgnored) continue;
    const double is_target = static_cast<int64_t>(i % classes) == wanted[r];
    slopes[i] = 0.5 / counted * (std::exp(logits[i] - sums[r]) - is_target);
  }
  loss.expect({total / counted}, "loss");
  log_sums.expect(kept, "log_sums");
  std::vector<double> with_shift(shift);
  with_shift.insert(with_shift.end(), slopes.begin(), slopes.end());
  if (shift) with_shift[0] = room[0];
  if (!shift) room.expect(slopes, "d_logits");
  for (size_t i = 0; shift && i < size; ++i) {
    if (std::abs(room[i + 1] - slopes[i]) < 2e-5 + std::abs(slopes[i]) * 1.5 * epsilon_of(numbers.product)) continue;
    CHECK(false, "d_logits[%zu] = %g, not %g", i, room[i + 1], slopes[i]);
    break;
  }
  if (!shift) expect_accesses({{room.address(), room.bytes()}}, true, "cross entropy gradient");
  forget_launches();
  return bits_of(loss, log_sums, losses, room);
}

Bits gather_case(int64_t bands, bool has_orientations) {
  constexpr int64_t kHeight = 9, kWidth = 7, kPatch = 5;
  constexpr size_t kCount = 24;
  const int64_t stride = (kWidth + kPatch - 1) * bands;
  const Values image = Values::random(Number::kFloat, static_cast<size_t>((kHeight + kPatch - 1) * stride), 15);
  std::vector<int64_t> chosen(kCount);
  std::vector<uint8_t> turns(kCount);
  for (size_t n = 0; n < kCount; ++n) {
    chosen[n] = static_cast<int64_t>(n * 17) % (kHeight * kWidth);
    turns[n] = static_cast<uint8_t>(n % 8);
  }
  const Items<int64_t> pixels(chosen);
  const Items<uint8_t> orientations(turns);
  const Values out(Number::kFloat, kCount * kPatch * kPatch * static_cast<size_t>(bands));
  const PatchSource source = {image.floats(), kHeight, kWidth, bands, kPatch};
  CHECK(launch_gather_patches(source, pixels.address, has_orientations ? orientations.address : nullptr, kCount,
                              out.floats(), nullptr) == cudaSuccess,
        "gather");
  std::vector<double> expected;
  std::vector<Area> reads = {{pixels.address, pixels.bytes()}};
  for (size_t n = 0; n < kCount; ++n) {
    const int turn = has_orientations ? turns[n] : 0;
    for (int64_t i = 0; i < kPatch; ++i) {
      for (int64_t j = 0; j < kPatch; ++j) {
        // First transposed, then flipped in rows and columns.
        int64_t r = turn & 4 ? j : i, c = turn & 4 ? i : j;
        if (turn & 1) r = kPatch - 1 - r;
        if (turn & 2) c = kPatch - 1 - c;
        const int64_t at = (chosen[n] / kWidth + r) * stride + (chosen[n] % kWidth + c) * bands;
        reads.push_back({image.floats() + at, static_cast<size_t>(bands) * 4});
        for (int64_t b = 0; b < bands; ++b) expected.push_back(image[static_cast<size_t>(at + b)]);
      }
    }
  }
  out.expect(expected, "patches", 0, 0);
  if (has_orientations) reads.push_back({orientations.address, orientations.bytes()});
  expect_accesses(reads, false, "gather");
  expect_accesses({{out.address(), out.bytes()}}, true, "gather");
  return bits_of(out);
}

Bits triplets_case(bool by_popularity) {
  using namespace trainkit::rec::detail;
  constexpr uint32_t kUsers = 11, kItems = 50;
  constexpr int64_t kBits = 64;
  constexpr size_t kCount = 700;
  std::vector<uint64_t> chosen;
  std::vector<uint32_t> bits(kUsers * kBits / 32);
  for (uint32_t i = 0; i < 120; ++i) {
    const uint32_t user = i % kUsers, item = (i * 29) % kItems;
    chosen.push_back(uint64_t{user} << 32 | item);
    bits[(user * kBits + item) / 32] |= 1u << (user * kBits + item) % 32;
  }
  std::vector<int64_t> wanted(kCount), seeds(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    wanted[i] = static_cast<int64_t>(i * 31 % chosen.size());
    seeds[i] = static_cast<int64_t>(i * 0x9e3779b97f4a7c15ULL);
  }
  const Items<uint64_t> pairs(chosen);
  const Items<uint32_t> chosen_bits(bits);
  const Items<int64_t> rows(wanted), keys(seeds), users(kCount), positives(kCount), negatives(kCount);
  TripletTables tables = {pairs.address, static_cast<uint32_t>(chosen.size()), chosen_bits.address, kBits, kItems,
                          by_popularity};
  CHECK(launch_draw_triplets(tables, rows.address, keys.address, kCount, users.address, positives.address,
                             negatives.address, nullptr) == cudaSuccess,
        "triplets");
  tables.pairs = chosen.data();
  tables.bits = bits.data();
  for (size_t i = 0; i < kCount; ++i) {
    const auto row = static_cast<size_t>(wanted[i]);
    CHECK(users[i] == static_cast<int64_t>(chosen[row] >> 32), "user %zu", i);
    CHECK(positives[i] == static_cast<int64_t>(chosen[row] & 0xffffffffu), "positive %zu", i);
    const uint32_t negative = draw_negative(tables, static_cast<uint32_t>(row), static_cast<uint64_t>(seeds[i]));
    CHECK(negatives[i] == negative && !is_chosen(tables, static_cast<uint32_t>(users[i]), negative), "negative %zu", i);
  }
  expect_accesses(
      {{users.address, users.bytes()}, {positives.address, users.bytes()}, {negatives.address, users.bytes()}}, true,
      "triplets");
  return bits_of(users, positives, negatives);
}
