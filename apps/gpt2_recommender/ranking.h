#pragma once
/// How good a list of recommended items is.

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gpt2_recommender/interactions.h"

namespace trainkit::rec {

/// The `k` items of the highest score of each user, best first: (users, k) int64 on the CPU. The score of a pair is the
/// inner product of its vectors, users (U, D) and items (I, D), of one floating-point type on one device. `left_out`
/// are not recommended; -1 where fewer than k items are left, or scores are not a number. Equal scores: on the CPU the
/// lower number comes first.
///
/// On the CPU a block of users at a time is multiplied and searched while its scores are in the cache, on all intra-op
/// threads; on CUDA the scores of a block are made, masked and searched there. Synchronises with the device.
at::Tensor top_items(const at::Tensor& users, const at::Tensor& items, const UserItems& left_out, int64_t k);

/// The same among `candidates` alone.
at::Tensor top_candidates(const at::Tensor& users, const at::Tensor& items, const UserItems& candidates, int64_t k);

/// Means over the users with a positive, in 0..1, under names like "recall@10": recall, precision, ndcg, mrr (of the
/// first hit; 0 if it is not among the first k) and hit (whether there is one), and coverage, the share of all items
/// that are recommended to anyone of them. `lists`: what top_items returns, k >= the largest of `ks`.
/// Source: recbole/evaluator/metrics.py (RecBole 1.2.1), whose values on the same lists are equal to 1e-6 (a test).
std::map<std::string, double> ranking_scores(const at::Tensor& lists, const UserItems& positives,
                                             std::span<const int64_t> ks);

struct RankingOptions {
  /// Part::kValidation or Part::kTest: whose items are to be found. What came before (training, and validation for a
  /// test) is not recommended.
  Part part = Part::kTest;
  std::vector<int64_t> ks = {5, 10, 20};
  /// 0: against all items. Otherwise a user's positives compete, all at once, with items drawn from (seed, user):
  /// cheaper, and far easier. So many for each positive, each drawn by itself (an item may come twice, and counts once)
  /// among those without an interaction in this part or one before: RecBole's uni100, if it is 100. Or so many
  /// different ones for each user, without an interaction in any part. Figures of different protocols do not compare.
  /// Source: RecBole 1.2.1, NegSampleEvalDataLoader and Sampler.get_used_ids.
  int64_t sampled_negatives = 0;
  bool sampled_per_user = false;
  uint64_t seed = 0;
};

/// Scores one part of a split by one protocol.
class Ranking {
 public:
  /// data.split (exit code 4) if a user has no item left to draw, or with sampled_per_user fewer than
  /// sampled_negatives.
  static absl::StatusOr<Ranking> create(const Interactions& interactions, const Split& split,
                                        const RankingOptions& options);

  /// Of a model with these vectors, see top_items: ranking_scores by its names.
  std::map<std::string, double> score(const at::Tensor& users, const at::Tensor& items) const;

  /// Of recommending to everyone what was chosen most often in training: what any model has to beat.
  std::map<std::string, double> score_popularity() const;

  /// "leave-one-out by time, full ranking of 3706 items": to stand beside every figure.
  const std::string& protocol() const { return protocol_; }

 private:
  Ranking(RankingOptions options, UserItems positives, UserItems left_out, at::Tensor popularity)
      : options_(std::move(options)),
        positives_(std::move(positives)),
        left_out_(std::move(left_out)),
        popularity_(std::move(popularity)) {}
  RankingOptions options_;
  UserItems positives_;
  UserItems left_out_;
  std::optional<UserItems> candidates_;
  at::Tensor popularity_;  // (items) float32: times chosen in training
  std::string protocol_;
};

}  // namespace trainkit::rec
