#pragma once
/// Ranks items for users and scores the lists.

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

/// Returns the `k` items with the highest scores for each user, best first: (U, k) int64 on the CPU. The score of a
/// pair is the inner product of its vectors; users (U, D) and items (I, D) have one floating-point type and device.
/// `excluded` items are not recommended. An entry is -1 if fewer than k items are left or scores are NaN. Items with
/// equal scores have a pseudo-random order, fixed for each user: `numbers` has the number of each row's user (default:
/// the row). A model whose scores are all equal thus has the scores of random lists.
///
/// On the CPU it multiplies and searches one block of users (and one tile of many items) at a time, while the scores
/// are in the cache, with all intra-op threads. On other devices it computes, masks and searches a block on the device.
/// Synchronises.
at::Tensor top_items(const at::Tensor& users, const at::Tensor& items, const UserItems& excluded, int64_t k,
                     std::span<const int64_t> numbers = {});

/// Returns the lists of top_items for scores that all users share: `popularity` (I) float32, on the CPU. Visits only
/// the first items of each user, not all.
at::Tensor top_popular(const at::Tensor& popularity, const UserItems& excluded, int64_t k);

/// Returns the lists of top_items among `candidates` only. Scores these alone where they are few; where they are a
/// large share of the items, one product of all is faster. On the CPU.
at::Tensor top_candidates(const at::Tensor& users, const at::Tensor& items, const UserItems& candidates, int64_t k);

/// Returns scores in 0..1 under names like "recall@10": recall, precision, ndcg, mrr (reciprocal rank of the first hit;
/// 0 without a hit in the first k) and hit (1 if there is a hit), as means over the users with a positive; and
/// coverage, the share of all items that are recommended to any of these users. `lists` comes from top_items with k >=
/// max(ks). Source: recbole/evaluator/metrics.py (RecBole 1.2.1). A test compares values on the same lists: equal to
/// 1e-6. With `chosen`, one value per user, only users with a true value count.
std::map<std::string, double> ranking_scores(const at::Tensor& lists, const UserItems& positives,
                                             std::span<const int64_t> ks, const std::vector<char>* chosen = nullptr);

/// Scores of the users with between `least` and `most` known interactions.
struct ActivityGroup {
  int64_t least = 0, most = 0, users = 0;
  std::map<std::string, double> model = {}, popularity = {};
};

struct RankingOptions {
  /// Part whose items are to be found: Part::kValidation or Part::kTest. Items of the parts before it (training, and
  /// validation for a test) are not recommended.
  Part part = Part::kTest;
  std::vector<int64_t> ks = {5, 10, 20};
  /// 0 ranks against all items. Otherwise all positives of a user are ranked together with items drawn from (seed,
  /// user): cheaper, but much easier. Scores of different protocols are not comparable. Per positive: that many items
  /// for each positive, drawn with replacement (a repeated item counts once) among those without an interaction in this
  /// part or an earlier one. 100 gives RecBole's uni100. Per user (sampled_per_user): that many distinct items without
  /// an interaction in any part. Source: RecBole 1.2.1, NegSampleEvalDataLoader and Sampler.get_used_ids.
  int64_t sampled_negatives = 0;
  bool sampled_per_user = false;
  uint64_t seed = 0;
  /// File with the items that each user's positives are ranked against, instead of sampled_negatives; see
  /// read_negatives. Empty: none.
  std::string negatives_file = {};
};

/// Reads the items that each user's positives are ranked against. Each line has the id of a user, or "(user,item)" as
/// in the files of NCF, and the ids of items, separated by tabs, or by commas in a line without a tab. Several lines of
/// a user are combined. Returns the items of each user; empty for a user without a line. Errors, exit code 4: those of
/// TextFile; data.negatives with the line for an unknown user or item.
absl::StatusOr<std::vector<std::vector<int32_t>>> read_negatives(const std::string& path,
                                                                 const Interactions& interactions);

/// The items that a user has not chosen, ascending, without a list of them.
class OtherItems {
 public:
  /// `chosen` is ascending and without duplicates, and must outlive this object.
  OtherItems(std::span<const int32_t> chosen, int64_t num_items) : chosen_(chosen), num_items_(num_items) {}

  size_t size() const { return static_cast<size_t>(num_items_) - chosen_.size(); }
  /// Returns item `at` of them, by a binary search.
  int32_t operator[](size_t at) const;

 private:
  std::span<const int32_t> chosen_;
  int64_t num_items_;
};

/// Returns the positives of each user and the items drawn with RankingOptions::sampled_negatives, or those of the file
/// of negatives `path`. Users without a positive have none. Errors: see Ranking::create.
absl::StatusOr<UserItems> sampled_candidates(const Interactions& interactions, const SplitItems& items,
                                             const UserItems& positives, const RankingOptions& options);
absl::StatusOr<UserItems> listed_candidates(const Interactions& interactions, const UserItems& positives,
                                            const std::string& path);

/// Scores models on one part of a split with one protocol.
class Ranking {
 public:
  /// Prepares a ranking. Error data.split (exit code 4) if a user has no item left to draw, or fewer than
  /// sampled_negatives with sampled_per_user. Errors of read_negatives.
  static absl::StatusOr<Ranking> create(const Interactions& interactions, const Split& split,
                                        const RankingOptions& options) {
    return create(interactions, split, SplitItems(interactions, split), options);
  }
  /// Prepares a ranking with the items of the split.
  static absl::StatusOr<Ranking> create(const Interactions& interactions, const Split& split, const SplitItems& items,
                                        const RankingOptions& options);

  /// Returns the lists (U, k) that a model with these vectors recommends (see top_items); k is the length of the
  /// longest scored list.
  at::Tensor lists(const at::Tensor& users, const at::Tensor& items) const;
  /// Returns the lists of recommending the most popular items of the training part to every user: the baseline.
  at::Tensor popular_lists() const;

  /// Returns the ranking_scores of lists, of a model with these vectors, and of popularity.
  std::map<std::string, double> score(const at::Tensor& lists) const;
  std::map<std::string, double> score(const at::Tensor& users, const at::Tensor& items) const {
    return score(lists(users, items));
  }
  std::map<std::string, double> score_popularity() const { return score(popular_lists()); }
  /// Returns the scores of the model's and popularity's lists for users of low to high activity: the known interactions
  /// of a user are those that are not to be found. At most four groups of about equal size.
  std::vector<ActivityGroup> score_by_activity(const at::Tensor& model, const at::Tensor& popular) const;

  /// Description of the protocol, to report with every score: "leave-one-out by time, full ranking of 3706 items".
  const std::string& protocol() const { return protocol_; }

 private:
  Ranking(RankingOptions options, UserItems positives, UserItems excluded, at::Tensor popularity)
      : options_(std::move(options)),
        positives_(std::move(positives)),
        excluded_(std::move(excluded)),
        popularity_(std::move(popularity)) {}
  RankingOptions options_;
  UserItems positives_;
  UserItems excluded_;
  std::optional<UserItems> candidates_;
  at::Tensor popularity_;  // (items) float32: times chosen in training
  std::string protocol_;
};

}  // namespace trainkit::rec
