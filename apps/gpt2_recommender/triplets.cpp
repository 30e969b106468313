#include "gpt2_recommender/triplets.h"

#include <ATen/Functions.h>
#include <ATen/TensorIndexing.h>
#include <ATen/TensorOperators.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "gpt2_recommender/triplet_draw.h"
#include "trainkit/core/error.h"
#include "trainkit/core/random.h"
#include "trainkit/core/vectorized.h"

namespace trainkit::rec {
namespace {

constexpr int64_t kMostBits = int64_t{1} << 31;  // 256 MiB
constexpr int64_t kBlock = 1024;                 // rows per block; its 38 KB of arrays stay in the L2 cache

/// Returns how many of the first `most` keys have the same seed and epoch as the first key.
int64_t count_same_epoch(const RowKey* keys, int64_t most) {
  uint64_t differences = 0;  // without a branch, so that it vectorises; nearly always 0
  for (int64_t i = 0; i < most; ++i) {
    differences |= static_cast<uint64_t>(keys[i].epoch ^ keys[0].epoch) | (keys[i].seed ^ keys[0].seed);
  }
  if (differences == 0) return most;
  int64_t count = 1;
  while (keys[count].epoch == keys[0].epoch && keys[count].seed == keys[0].seed) ++count;
  return count;
}

TRAINKIT_VECTORIZED void read_pairs(const RowKey* keys, int64_t count, const uint64_t* table, uint32_t* rows,
                                    uint64_t* pairs) {
  for (int64_t i = 0; i < count; ++i) rows[i] = static_cast<uint32_t>(keys[i].index);
  for (int64_t i = 0; i < count; ++i) pairs[i] = table[rows[i]];
}

TRAINKIT_VECTORIZED void draw(const uint32_t* rows, int64_t count, uint64_t key, uint32_t n, uint32_t* drawn) {
  const auto low = static_cast<uint32_t>(key), high = static_cast<uint32_t>(key >> 32);
  for (int64_t i = 0; i < count; ++i) drawn[i] = detail::scale_to(detail::row_bits(rows[i], low, high), n);
}

/// Sets taken[i] to the history bit of (user of pair i, item i). 32 bits suffice for the position (kMostBits).
TRAINKIT_VECTORIZED void look_up(const uint32_t* bits, uint32_t bits_per_user, const uint64_t* pairs,
                                 const uint32_t* items, int64_t count, uint32_t* taken) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bit = static_cast<uint32_t>(pairs[i] >> 32) * bits_per_user + items[i];
    taken[i] = bits[bit >> 5] >> (bit & 31) & 1;
  }
}

TRAINKIT_VECTORIZED void write_out(const uint64_t* pairs, const uint32_t* drawn, int64_t count, int64_t* users,
                                   int64_t* positives, int64_t* negatives) {
  for (int64_t i = 0; i < count; ++i) users[i] = static_cast<int64_t>(pairs[i] >> 32);
  for (int64_t i = 0; i < count; ++i) positives[i] = static_cast<int64_t>(pairs[i] & 0xffffffffu);
  for (int64_t i = 0; i < count; ++i) negatives[i] = static_cast<int64_t>(drawn[i]);
}

}  // namespace

History::History(UserItems positives)
    : positives_(std::move(positives)), bits_per_user_((positives_.num_items() + 31) / 32 * 32) {
  if (positives_.num_users() > kMostBits / std::max<int64_t>(bits_per_user_, 1)) return;
  bits_.resize(positives_.num_users() * bits_per_user_ / 32);
  for (int64_t user = 0; user < positives_.num_users(); ++user) {
    for (const int32_t item : positives_.of(user)) {
      const auto bit = static_cast<uint64_t>(user * bits_per_user_ + item);
      bits_[bit / 32] |= 1u << (bit % 32);
    }
  }
}

at::Tensor History::dense() const {
  at::Tensor table = at::zeros({positives_.num_users(), positives_.num_items()}, at::kBool);
  bool* data = table.mutable_data_ptr<bool>();
  for (int64_t user = 0; user < positives_.num_users(); ++user) {
    for (const int32_t item : positives_.of(user)) data[user * positives_.num_items() + item] = true;
  }
  return table;
}

absl::StatusOr<std::shared_ptr<const TripletDataset>> TripletDataset::create(const Interactions& interactions,
                                                                             const Split& split,
                                                                             const SplitItems& items, Part part,
                                                                             Negatives negatives) {
  UserItems positives = items.of({Part::kTrain, part});
  for (int64_t user = 0; user < positives.num_users(); ++user) {
    if (static_cast<int64_t>(positives.of(user).size()) < positives.num_items()) continue;
    return to_status({.exit_code = ExitCode::kData,
                      .id = "data.ratings",
                      .where = fmt::format("user {}", interactions.users[user].id),
                      .problem = "has chosen every item, so there is no negative",
                      .got = fmt::format("{} items", positives.num_items()),
                      .expected = "an item that was not chosen"});
  }
  std::vector<Pair> pairs;
  pairs.reserve(static_cast<size_t>(split.count(part)));
  for (int64_t i = 0; i < interactions.size(); ++i) {
    if (split.parts[i] != part) continue;
    const Pair pair = static_cast<uint64_t>(interactions.user[i]) << 32 | static_cast<uint32_t>(interactions.item[i]);
    pairs.insert(pairs.end(), part == Part::kTrain ? interactions.events(i) : 1, pair);
  }
  TORCH_CHECK(pairs.size() < std::numeric_limits<uint32_t>::max(), "more than 2^32 interactions");
  return std::shared_ptr<const TripletDataset>(
      new TripletDataset(std::move(pairs), History(std::move(positives)), negatives));
}

TripletDataset::TripletDataset(std::vector<Pair> pairs, History history, Negatives negatives)
    : pairs_(std::move(pairs)),
      history_(std::move(history)),
      negatives_(negatives),
      fields_{{"users", at::kLong, {}}, {"pos_items", at::kLong, {}}, {"neg_items", at::kLong, {}}} {}

void TripletDataset::get(const RowKey& key, const BatchView& out, int64_t at) const {
  fill({&key, 1}, out.row<int64_t>(0, at), out.row<int64_t>(1, at), out.row<int64_t>(2, at));
}

void TripletDataset::get_batch(std::span<const RowKey> keys, const BatchView& out) const {
  int64_t at = 0;
  while (!keys.empty()) {
    const int64_t count = count_same_epoch(keys.data(), std::min<int64_t>(kBlock, static_cast<int64_t>(keys.size())));
    fill(keys.first(static_cast<size_t>(count)), out.row<int64_t>(0, at), out.row<int64_t>(1, at),
         out.row<int64_t>(2, at));
    keys = keys.subspan(static_cast<size_t>(count));
    at += count;
  }
}

/// Fills the rows of at most kBlock keys with the same seed and epoch.
void TripletDataset::fill(std::span<const RowKey> keys, int64_t* users, int64_t* positives, int64_t* drawn) const {
  uint32_t rows[kBlock], items[kBlock];
  Pair pairs[kBlock];
  const auto count = static_cast<int64_t>(keys.size());
  read_pairs(keys.data(), count, pairs_.data(), rows, pairs);
  draw_items(rows, pairs, count, hash_key(keys[0].seed, keys[0].epoch), items);
  write_out(pairs, items, count, users, positives, drawn);
}

/// Draws for all rows, then again for the rows whose item is taken. The rows to repeat are gathered without branches:
/// each index is written, but the count grows only if the item is taken. See Note [Negative draw] in triplet_draw.h.
void TripletDataset::draw_items(const uint32_t* rows, const Pair* pairs, int64_t count, uint64_t key,
                                uint32_t* items) const {
  uint32_t taken[kBlock], left_rows[kBlock], left_items[kBlock];
  Pair left_pairs[kBlock];
  uint16_t where[kBlock];
  draw_once(rows, pairs, count, key, items, taken);
  int64_t left = 0;
  for (int64_t i = 0; i < count; ++i) {
    where[left] = static_cast<uint16_t>(i);
    left += taken[i];
  }
  for (int64_t j = 0; j < left; ++j) {
    left_rows[j] = rows[where[j]];
    left_pairs[j] = pairs[where[j]];
  }
  for (int attempt = 1; left > 0 && attempt < detail::kNegativeTries; ++attempt) {
    draw_once(left_rows, left_pairs, left, hash_key(key, attempt), left_items, taken);
    for (int64_t j = 0; j < left; ++j) items[where[j]] = left_items[j];
    int64_t still_left = 0;
    for (int64_t j = 0; j < left; ++j) {
      where[still_left] = where[j];
      left_rows[still_left] = left_rows[j];
      left_pairs[still_left] = left_pairs[j];
      still_left += taken[j];
    }
    left = still_left;
  }
  const auto num_items = static_cast<uint32_t>(history_.positives().num_items());
  for (int64_t j = 0; j < left; ++j) {
    uint32_t& item = items[where[j]];
    while (history_.contains(static_cast<int64_t>(left_pairs[j] >> 32), item)) item = (item + 1) % num_items;
  }
}

void TripletDataset::draw_once(const uint32_t* rows, const Pair* pairs, int64_t count, uint64_t key, uint32_t* items,
                               uint32_t* taken) const {
  if (negatives_ == Negatives::kUniform) {
    draw(rows, count, key, static_cast<uint32_t>(history_.positives().num_items()), items);
  } else {
    // The item of a random interaction has the frequency with which it was chosen.
    draw(rows, count, key, static_cast<uint32_t>(size()), items);
    for (int64_t i = 0; i < count; ++i) items[i] = static_cast<uint32_t>(pairs_[items[i]]);
  }
  if (const auto bits = history_.bits(); !bits.empty()) {
    look_up(bits.data(), static_cast<uint32_t>(history_.bits_per_user()), pairs, items, count, taken);
  } else {
    for (int64_t i = 0; i < count; ++i) taken[i] = history_.contains(static_cast<int64_t>(pairs[i] >> 32), items[i]);
  }
}

at::Tensor in_batch_negatives(const at::Tensor& users, const at::Tensor& positives, const at::Tensor& drawn,
                              const at::Tensor& known) {
  const int64_t rows = users.size(0);
  if (rows < 2) return drawn;
  const at::Tensor own = at::arange(rows, users.options());
  at::Tensor chosen = drawn, missing = at::ones({rows}, users.options().dtype(at::kBool));
  for (int64_t attempt = 0; attempt < 8; ++attempt) {
    // Go 1 to rows - 1 rows ahead. The mixing needs no statistical quality, only other rows for other draws.
    const at::Tensor mixed = (drawn * 40503 + own * 7919 + attempt * 104729).remainder(rows - 1);
    const at::Tensor candidate = positives.index_select(0, (own + mixed + 1).remainder(rows));
    const at::Tensor accepted = missing.logical_and(known.index({users, candidate}).logical_not());
    chosen = at::where(accepted, candidate, chosen);
    missing = missing.logical_and(accepted.logical_not());
  }
  return chosen;
}

}  // namespace trainkit::rec
