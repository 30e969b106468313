#pragma once
/// What BPR trains on: a user, an item they chose and one that they did not.

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

/// Whether a user is known to have chosen an item, in O(1): a bit for each pair, or, where these would take more than
/// 256 MiB, a search in the user's items.
class History {
 public:
  explicit History(UserItems positives);

  bool contains(int64_t user, int64_t item) const {
    if (bits_.empty()) return positives_.contains(user, static_cast<int32_t>(item));
    const auto bit = static_cast<uint64_t>(user * bits_per_user_ + item);
    return bits_[bit / 32] >> (bit % 32) & 1;
  }
  const UserItems& positives() const { return positives_; }

  /// The bits, bits_per_user() of each user, least significant first; empty where there are none.
  std::span<const uint32_t> bits() const { return bits_; }
  int64_t bits_per_user() const { return bits_per_user_; }
  /// (users, items) bool, for checks on a device.
  at::Tensor dense() const;

 private:
  UserItems positives_;
  int64_t bits_per_user_;
  std::vector<uint32_t> bits_;
};

/// How items that a user did not choose are drawn.
enum class Negatives {
  kUniform,     ///< All items alike.
  kPopularity,  ///< As often as they were chosen.
};

/// Row i is interaction i of a part with a negative: fields users, pos_items, neg_items, int64 scalars.
///
///   auto triplets = TripletDataset::create(interactions, split, Part::kTrain, Negatives::kUniform).value();
///
/// The negative is a function of (seed, epoch, row): a run resumes anywhere, with any number of workers and ranks, and
/// another epoch has others. It is never an item that the user chose in training or, where rows of another part are
/// asked for, in that part; the rest may be drawn, or the model would be told what they are. Drawn again while it is a
/// positive, 64 times, and then the next item in number that is none. Any number of threads.
class TripletDataset final : public Dataset {
 public:
  /// data.ratings (exit code 4) if a user has chosen every item: there is no negative for them.
  static absl::StatusOr<std::shared_ptr<const TripletDataset>> create(const Interactions& interactions,
                                                                      const Split& split, Part part,
                                                                      Negatives negatives);

  int64_t size() const override { return static_cast<int64_t>(pairs_.size()); }
  const std::vector<FieldSpec>& fields() const override { return fields_; }
  void get(const RowKey& key, const BatchView& out, int64_t at) const override;
  void get_batch(std::span<const RowKey> keys, const BatchView& out) const override;

  const History& history() const { return history_; }
  Negatives negatives() const { return negatives_; }

  /// User in the upper half, item in the lower one: a row is one read.
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

/// In-batch negatives: for each row another row's positive, from the same batch, that the user is not known to have
/// chosen; `drawn` where eight tries find none. Which rows are tried follows from `drawn`, so that nothing else needs a
/// generator. It depends on which rows are in the batch: another micro-batch or number of devices gives others.
/// `known`: History::dense() on their device. All (N) int64; no device read.
at::Tensor in_batch_negatives(const at::Tensor& users, const at::Tensor& positives, const at::Tensor& drawn,
                              const at::Tensor& known);

}  // namespace trainkit::rec
