#pragma once
/// Makes the triplets that BPR trains on: a user, an item that the user chose, and one that the user did not choose.

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gpt2_recommender/interactions.h"
#include "trainkit/data/dataset.h"

namespace trainkit::rec {

/// Knows which items each user has chosen. Uses one bit per pair and O(1) lookup; if the bits would exceed 256 MiB, a
/// binary search in the user's items.
class History {
 public:
  explicit History(UserItems positives);

  bool contains(int64_t user, int64_t item) const {
    if (bits_.empty()) return positives_.contains(user, static_cast<int32_t>(item));
    const auto bit = static_cast<uint64_t>(user * bits_per_user_ + item);
    return bits_[bit / 32] >> (bit % 32) & 1;
  }
  const UserItems& positives() const { return positives_; }

  /// Bits of all users, bits_per_user() each, least significant first. Empty if the search is used instead.
  std::span<const uint32_t> bits() const { return bits_; }
  int64_t bits_per_user() const { return bits_per_user_; }
  /// Returns the history as a (users, items) bool tensor on the CPU.
  at::Tensor dense() const;

 private:
  UserItems positives_;
  int64_t bits_per_user_;
  std::vector<uint32_t> bits_;
};

/// Distribution of sampled negatives.
enum class Negatives {
  kUniform,     ///< All items with equal probability.
  kPopularity,  ///< With the frequency with which items were chosen.
};

/// Data set of triplets. Row i is interaction i of a part with a negative: fields users, pos_items, neg_items, int64
/// scalars.
///
///   auto triplets = TripletDataset::create(interactions, split, Part::kTrain, Negatives::kUniform).value();
///
/// The negative is a function of (seed, epoch, row), so that runs resume exactly with any number of workers and ranks;
/// each epoch has new ones. It is never an item that the user chose in training or in `part`. Items of the other parts
/// can be drawn: to exclude them would reveal the test to the model. See Note [Negative draw] in triplet_draw.h.
/// Thread-safe.
class TripletDataset final : public Dataset {
 public:
  /// Makes the triplets of a part; in training one for each event of a pair (Interactions::events). Error data.ratings
  /// (exit code 4) if a user has chosen every item, since there is no negative then.
  static absl::StatusOr<std::shared_ptr<const TripletDataset>> create(const Interactions& interactions,
                                                                      const Split& split, Part part,
                                                                      Negatives negatives) {
    return create(interactions, split, SplitItems(interactions, split), part, negatives);
  }
  /// Makes them with the items of the split.
  static absl::StatusOr<std::shared_ptr<const TripletDataset>> create(const Interactions& interactions,
                                                                      const Split& split, const SplitItems& items,
                                                                      Part part, Negatives negatives);

  int64_t size() const override { return static_cast<int64_t>(pairs_.size()); }
  const std::vector<FieldSpec>& fields() const override { return fields_; }
  void get(const RowKey& key, const BatchView& out, int64_t at) const override;
  void get_batch(std::span<const RowKey> keys, const BatchView& out) const override;

  const History& history() const { return history_; }
  Negatives negatives() const { return negatives_; }

  /// User in the upper half, item in the lower half: one read per row.
  using Pair = uint64_t;
  std::span<const Pair> pairs() const { return pairs_; }

 private:
  TripletDataset(std::vector<Pair> pairs, History history, Negatives negatives);
  void fill(std::span<const RowKey> keys, int64_t* users, int64_t* positives, int64_t* drawn) const;
  void draw_items(const uint32_t* rows, const Pair* pairs, int64_t count, uint64_t key, uint32_t* items) const;
  void draw_once(const uint32_t* rows, const Pair* pairs, int64_t count, uint64_t key, uint32_t* items,
                 uint32_t* taken) const;

  std::vector<Pair> pairs_;
  History history_;
  Negatives negatives_;
  std::vector<FieldSpec> fields_;
};

/// Returns in-batch negatives (N) int64: for each row the positive of another row of the batch that the user has not
/// chosen, or `drawn` if eight tries find none. `users`, `positives` and `drawn` are (N) int64; `known` is
/// History::dense() on their device. The tried rows follow from `drawn`, so it needs no random generator. The result
/// depends on the rows of the batch: another micro-batch size or number of devices gives other negatives. Does not
/// synchronise.
at::Tensor in_batch_negatives(const at::Tensor& users, const at::Tensor& positives, const at::Tensor& drawn,
                              const at::Tensor& known);

}  // namespace trainkit::rec
