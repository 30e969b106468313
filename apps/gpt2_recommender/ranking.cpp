#include "gpt2_recommender/ranking.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "trainkit/core/fs.h"
#include "trainkit/core/random.h"
#include "trainkit/core/status.h"
#include "trainkit/core/vectorized.h"

namespace trainkit::rec {
namespace {

constexpr int64_t kUserBlock = 32;  // 474 KB of scores for 3,706 items: they stay in the L2 cache
constexpr int64_t kMostItems = 4096;
constexpr int64_t kLargeUserBlock = 128, kItemTile = 1024;  // with more items: 512 KB of scores
constexpr int64_t kDeviceBlock = 1024;
constexpr int64_t kScoreChunk = 64;
constexpr int64_t kScoreLanes = 16;
constexpr int64_t kProductsPerScore = 8;  // scores in a product of matrices for the time of one alone
constexpr float kNever = -std::numeric_limits<float>::infinity();

/// Returns whether one of x[0..kScoreChunk) is at least `least`. Has no early exit, so that it vectorises.
TRAINKIT_VECTORIZED bool any_of_at_least(const float* x, float least) {
  int found = 0;
  for (int64_t i = 0; i < kScoreChunk; ++i) found |= x[i] >= least;
  return found != 0;
}

/// Keeps the k best items of a user so far, best first, by insertion. Neither NaN nor kNever is inserted.
class TopList {
 public:
  TopList(int64_t* items, int64_t k, int64_t user)
      : items_(items), scores_(static_cast<size_t>(k), kNever), k_(k), user_(user) {
    std::fill(items, items + k, -1);
  }
  float least() const { return scores_.back(); }
  void offer(float score, int64_t item) {
    if (!(score > kNever) || !is_before(score, item, k_ - 1)) return;
    int64_t at = k_ - 1;
    for (; at > 0 && is_before(score, item, at - 1); --at) {
      scores_[at] = scores_[at - 1];
      items_[at] = items_[at - 1];
    }
    scores_[at] = score;
    items_[at] = item;
  }

 private:
  /// See Note [Equal scores].
  uint64_t tie_order(int64_t item) const { return hash_key(0x71e5u, user_, item); }
  bool is_before(float score, int64_t item, int64_t at) const {
    return score > scores_[at] || (score == scores_[at] && tie_order(item) < tie_order(items_[at]));
  }
  int64_t* items_;
  std::vector<float> scores_;
  int64_t k_, user_;
};

// Note [Equal scores]
// ~~~~~~~~~~~~~~~~~~~
// Items are numbered as they first appear in the data, so low numbers are popular items. Equal scores in the order of
// the numbers would give a model that has learned nothing (all scores equal) the scores of a good one. Each user has an
// own pseudo-random order of the items instead: a hash of user and item. On a GPU, topk orders equal scores
// arbitrarily, so the CPU searches the rows in which it found some.

/// Offers the scores of the items from `first` on. Skips chunks without a score as good as the k-th best so far, which
/// are nearly all.
void offer_all(TopList& list, const float* scores, int64_t count, int64_t first) {
  int64_t i = 0;
  for (; i + kScoreChunk <= count; i += kScoreChunk) {
    if (!any_of_at_least(scores + i, list.least())) continue;
    for (int64_t j = i; j < i + kScoreChunk; ++j) list.offer(scores[j], first + j);
  }
  for (; i < count; ++i) list.offer(scores[i], first + i);
}

int64_t number_of(std::span<const int64_t> numbers, int64_t row) {
  return numbers.empty() ? row : numbers[static_cast<size_t>(row)];
}

/// Returns the part of ascending `items` from `first` to first + count - 1.
std::span<const int32_t> items_between(std::span<const int32_t> items, int64_t first, int64_t count) {
  const auto begin = std::lower_bound(items.begin(), items.end(), first);
  return {begin, std::lower_bound(begin, items.end(), first + count)};
}

/// Returns the lists (U, k) of all users. Calls visit(list, user, first, scores, count) for every user and tile of the
/// items, from several threads: `scores` are those of the items from `first` on, which `visit` may change.
template <class Visit>
at::Tensor search_tiles(const at::Tensor& users, const at::Tensor& items, int64_t k, std::span<const int64_t> numbers,
                        Visit visit) {
  const at::Tensor rows = users.to(at::kFloat).contiguous(), columns = items.to(at::kFloat).t();
  const int64_t count = rows.size(0), num_items = columns.size(1);
  const int64_t block = num_items > kMostItems ? kLargeUserBlock : kUserBlock;
  const int64_t tile = num_items > kMostItems ? kItemTile : num_items;
  at::Tensor lists = at::empty({count, k}, at::kLong);
  auto* out = lists.mutable_data_ptr<int64_t>();
  at::parallel_for(0, (count + block - 1) / block, 1, [&](int64_t begin, int64_t end) {
    const c10::InferenceMode guard;
    const at::Tensor products = at::empty({block, tile}, at::kFloat);
    std::vector<TopList> best;
    for (int64_t b = begin; b < end; ++b) {
      const int64_t user = b * block, size = std::min(block, count - user);
      best.clear();
      for (int64_t i = user; i < user + size; ++i) best.emplace_back(out + i * k, k, number_of(numbers, i));
      for (int64_t first = 0; first < num_items; first += tile) {
        const int64_t width = std::min(tile, num_items - first);
        at::Tensor scores = products.narrow(0, 0, size).narrow(1, 0, width);
        at::mm_out(scores, rows.narrow(0, user, size), columns.narrow(1, first, width));
        auto* data = scores.mutable_data_ptr<float>();
        for (int64_t i = 0; i < size; ++i) visit(best[static_cast<size_t>(i)], user + i, first, data + i * tile, width);
      }
    }
  });
  return lists;
}

/// Searches the rows again in whose `best` scores (N, k + 1), best first, some are equal. See Note [Equal scores].
void order_ties(at::Tensor& lists, const at::Tensor& best, const at::Tensor& scores, int64_t first,
                std::span<const int64_t> numbers) {
  const at::Tensor left = best.narrow(1, 0, best.size(1) - 1), right = best.narrow(1, 1, best.size(1) - 1);
  const at::Tensor rows = left.eq(right).logical_and_(left.ne(kNever)).any(1).nonzero().view(-1);
  const at::Tensor copy = scores.index_select(0, rows).cpu(), at_rows = rows.cpu();
  for (int64_t i = 0; i < copy.size(0); ++i) {
    const int64_t row = at_rows.const_data_ptr<int64_t>()[i];
    TopList list(lists.mutable_data_ptr<int64_t>() + row * lists.size(1), lists.size(1),
                 number_of(numbers, first + row));
    offer_all(list, copy.const_data_ptr<float>() + i * copy.size(1), copy.size(1), 0);
  }
}

at::Tensor top_items_on_device(const at::Tensor& users, const at::Tensor& items, const UserItems& excluded, int64_t k,
                               std::span<const int64_t> numbers) {
  std::vector<at::Tensor> lists;
  const int64_t most = std::min(k, items.size(0)), with_next = std::min(k + 1, items.size(0));
  for (int64_t first = 0; first < users.size(0); first += kDeviceBlock) {
    const int64_t size = std::min(kDeviceBlock, users.size(0) - first);
    at::Tensor scores = at::mm(users.narrow(0, first, size).to(at::kFloat), items.to(at::kFloat).t());
    std::vector<int64_t> where;  // excluded positions in `scores`
    for (int64_t i = 0; i < size; ++i) {
      for (const int32_t item : excluded.of(first + i)) where.push_back(i * items.size(0) + item);
    }
    scores.view(-1).index_fill_(0, at::tensor(where, at::kLong).to(users.device()), kNever);
    scores = scores.nan_to_num_(kNever, std::numeric_limits<double>::infinity(), kNever);
    const auto [best, order] = scores.topk(with_next, 1);
    at::Tensor list = at::where(best.eq(kNever), -1, order).narrow(1, 0, most).cpu();
    list = at::constant_pad_nd(list, {0, k - most}, -1);
    order_ties(list, best, scores, first, numbers);
    lists.push_back(list);
  }
  return at::cat(lists);
}

/// Sums of the scores over users, for one k.
struct Sums {
  double recall = 0, precision = 0, ndcg = 0, mrr = 0, hit = 0;
};

/// Adds a user's scores at k. `found[i]` says whether item i of the list is one of the user's `positives`.
void add_user(Sums& sums, const std::vector<char>& found, int64_t positives, int64_t k) {
  double dcg = 0, ideal = 0;
  int64_t hits = 0, first = 0;
  for (int64_t i = 0; i < k; ++i) {
    const double gain = 1 / std::log2(static_cast<double>(i) + 2);
    if (i < positives) ideal += gain;
    if (!found[i]) continue;
    dcg += gain;
    if (hits++ == 0) first = i + 1;
  }
  sums.recall += static_cast<double>(hits) / static_cast<double>(positives);
  sums.precision += static_cast<double>(hits) / static_cast<double>(k);
  sums.ndcg += dcg / ideal;
  sums.mrr += first > 0 ? 1 / static_cast<double>(first) : 0;
  sums.hit += hits > 0;
}

/// Computes scores[i] = user . items[chosen[i]] for rows of `dim` values. Sums in kScoreLanes partial sums, which the
/// compiler keeps in vector registers, and then pairwise: the order of the additions is fixed.
TRAINKIT_VECTORIZED void score_chosen(const float* user, const float* items, int64_t dim, const int32_t* chosen,
                                      int64_t count, float* scores) {
  for (int64_t i = 0; i < count; ++i) {
    const float* item = items + chosen[i] * dim;
    float lanes[kScoreLanes] = {};
    int64_t k = 0;
    for (; k + kScoreLanes <= dim; k += kScoreLanes) {
      for (int64_t l = 0; l < kScoreLanes; ++l) lanes[l] += user[k + l] * item[k + l];
    }
    for (int64_t l = 0; k < dim; ++k, ++l) lanes[l] += user[k] * item[k];
    for (int64_t width = kScoreLanes / 2; width > 0; width /= 2) {
      for (int64_t l = 0; l < width; ++l) lanes[l] += lanes[l + width];
    }
    scores[i] = lanes[0];
  }
}

}  // namespace

at::Tensor top_items(const at::Tensor& users, const at::Tensor& items, const UserItems& excluded, int64_t k,
                     std::span<const int64_t> numbers) {
  TORCH_CHECK_VALUE(k >= 1, "k must be >= 1, got ", k);
  TORCH_CHECK_VALUE(users.dim() == 2 && items.dim() == 2 && users.size(1) == items.size(1), "users (U, D) and items ",
                    "(I, D) expected, got ", users.sizes(), " and ", items.sizes());
  TORCH_CHECK_VALUE(users.size(0) == excluded.num_users(), "vectors of ", users.size(0), " users, excluded items of ",
                    excluded.num_users());
  const c10::InferenceMode guard;
  if (!users.is_cpu()) return top_items_on_device(users, items, excluded, k, numbers);
  return search_tiles(users, items, k, numbers,
                      [&](TopList& list, int64_t user, int64_t first, float* scores, int64_t count) {
                        for (const int32_t item : items_between(excluded.of(user), first, count)) {
                          scores[item - first] = kNever;
                        }
                        offer_all(list, scores, count, first);
                      });
}

at::Tensor top_popular(const at::Tensor& popularity, const UserItems& excluded, int64_t k) {
  const auto* scores = popularity.const_data_ptr<float>();
  std::vector<int32_t> order(static_cast<size_t>(popularity.size(0)));
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });
  at::Tensor lists = at::empty({excluded.num_users(), k}, at::kLong);
  auto* out = lists.mutable_data_ptr<int64_t>();
  at::parallel_for(0, excluded.num_users(), kUserBlock, [&](int64_t begin, int64_t end) {
    std::vector<char> is_excluded(order.size());
    for (int64_t user = begin; user < end; ++user) {
      for (const int32_t item : excluded.of(user)) is_excluded[item] = 1;
      TopList list(out + user * k, k, user);
      for (const int32_t item : order) {
        if (scores[item] < list.least()) break;  // also all after it
        if (!is_excluded[item]) list.offer(scores[item], item);
      }
      for (const int32_t item : excluded.of(user)) is_excluded[item] = 0;
    }
  });
  return lists;
}

at::Tensor top_candidates(const at::Tensor& users, const at::Tensor& items, const UserItems& candidates, int64_t k) {
  const c10::InferenceMode guard;
  if (candidates.size() * kProductsPerScore >= users.size(0) * items.size(0)) {
    return search_tiles(users.cpu(), items.cpu(), k, {},
                        [&](TopList& list, int64_t user, int64_t first, const float* scores, int64_t count) {
                          for (const int32_t item : items_between(candidates.of(user), first, count)) {
                            list.offer(scores[item - first], item);
                          }
                        });
  }
  const at::Tensor rows = users.to(at::kCPU, at::kFloat).contiguous(),
                   table = items.to(at::kCPU, at::kFloat).contiguous();
  const int64_t dim = rows.size(1);
  at::Tensor lists = at::empty({users.size(0), k}, at::kLong);
  auto* out = lists.mutable_data_ptr<int64_t>();
  at::parallel_for(0, rows.size(0), kUserBlock, [&](int64_t begin, int64_t end) {
    std::vector<float> scores;
    for (int64_t user = begin; user < end; ++user) {
      const auto chosen = candidates.of(user);
      scores.resize(chosen.size());
      score_chosen(rows.const_data_ptr<float>() + user * dim, table.const_data_ptr<float>(), dim, chosen.data(),
                   std::ssize(chosen), scores.data());
      TopList list(out + user * k, k, user);
      for (size_t i = 0; i < chosen.size(); ++i) list.offer(scores[i], chosen[i]);
    }
  });
  return lists;
}

std::map<std::string, double> ranking_scores(const at::Tensor& lists, const UserItems& positives,
                                             std::span<const int64_t> ks, const std::vector<char>* chosen) {
  const int64_t width = lists.size(1), num_items = positives.num_items();
  const int64_t* data = lists.const_data_ptr<int64_t>();
  std::vector<Sums> sums(ks.size());
  std::vector<std::vector<char>> shown(ks.size(), std::vector<char>(num_items));
  std::vector<char> found(width);
  int64_t users = 0;
  for (int64_t user = 0; user < positives.num_users(); ++user) {
    const auto count = static_cast<int64_t>(positives.of(user).size());
    if (count == 0 || (chosen && !(*chosen)[user])) continue;
    ++users;
    const int64_t* list = data + user * width;
    for (int64_t i = 0; i < width; ++i) {
      found[i] = list[i] >= 0 && positives.contains(user, static_cast<int32_t>(list[i]));
    }
    for (size_t j = 0; j < ks.size(); ++j) {
      add_user(sums[j], found, count, ks[j]);
      for (int64_t i = 0; i < ks[j]; ++i) {
        if (list[i] >= 0) shown[j][list[i]] = 1;
      }
    }
  }
  std::map<std::string, double> scores;
  const double n = std::max<double>(1, static_cast<double>(users));
  for (size_t j = 0; j < ks.size(); ++j) {
    const auto name = [&](const char* metric) { return fmt::format("{}@{}", metric, ks[j]); };
    scores[name("recall")] = sums[j].recall / n;
    scores[name("precision")] = sums[j].precision / n;
    scores[name("ndcg")] = sums[j].ndcg / n;
    scores[name("mrr")] = sums[j].mrr / n;
    scores[name("hit")] = sums[j].hit / n;
    const auto covered = std::count(shown[j].begin(), shown[j].end(), 1);
    scores[name("coverage")] = static_cast<double>(covered) / static_cast<double>(num_items);
  }
  return scores;
}

absl::StatusOr<Ranking> Ranking::create(const Interactions& interactions, const Split& split, const SplitItems& items,
                                        const RankingOptions& options) {
  const bool is_test = options.part == Part::kTest;
  UserItems positives = items.of({options.part});
  UserItems excluded = is_test ? items.of({Part::kTrain, Part::kValidation}) : items.of({Part::kTrain});
  at::Tensor popularity = at::zeros({interactions.num_items()}, at::kFloat);
  auto* counts = popularity.mutable_data_ptr<float>();
  for (int64_t i = 0; i < interactions.size(); ++i) {
    if (split.parts[i] == Part::kTrain) counts[interactions.item[i]] += static_cast<float>(interactions.events(i));
  }
  Ranking ranking(options, std::move(positives), std::move(excluded), std::move(popularity));
  if (!options.negatives_file.empty()) {
    TRAINKIT_ASSIGN_OR_RETURN(ranking.candidates_,
                              listed_candidates(interactions, ranking.positives_, options.negatives_file));
    ranking.protocol_ =
        fmt::format("{}, against the negatives of {}", split.protocol, split_path(options.negatives_file).second);
  } else if (options.sampled_negatives > 0) {
    TRAINKIT_ASSIGN_OR_RETURN(ranking.candidates_,
                              sampled_candidates(interactions, items, ranking.positives_, options));
    ranking.protocol_ =
        fmt::format("{}, against {} sampled negatives of each {}{}", split.protocol, options.sampled_negatives,
                    options.sampled_per_user ? "user" : "positive",
                    options.sampled_negatives == 100 && !options.sampled_per_user ? " (RecBole's uni100)" : "");
  } else {
    ranking.protocol_ = fmt::format("{}, full ranking of {} items", split.protocol, interactions.num_items());
  }
  return ranking;
}

at::Tensor Ranking::lists(const at::Tensor& users, const at::Tensor& items) const {
  const int64_t k = *std::max_element(options_.ks.begin(), options_.ks.end());
  return candidates_ ? top_candidates(users, items, *candidates_, k) : top_items(users, items, excluded_, k);
}

at::Tensor Ranking::popular_lists() const {
  const int64_t k = *std::max_element(options_.ks.begin(), options_.ks.end());
  if (!candidates_) return top_popular(popularity_, excluded_, k);
  return top_candidates(at::ones({positives_.num_users(), 1}), popularity_.unsqueeze(1), *candidates_, k);
}

std::map<std::string, double> Ranking::score(const at::Tensor& lists) const {
  return ranking_scores(lists, positives_, options_.ks);
}

std::vector<ActivityGroup> Ranking::score_by_activity(const at::Tensor& model, const at::Tensor& popular) const {
  constexpr size_t kGroups = 4;
  std::vector<int64_t> activity;  // of the users with a positive
  const auto known = [&](int64_t user) { return static_cast<int64_t>(excluded_.of(user).size()); };
  for (int64_t user = 0; user < positives_.num_users(); ++user) {
    if (!positives_.of(user).empty()) activity.push_back(known(user));
  }
  std::sort(activity.begin(), activity.end());
  std::vector<ActivityGroup> groups;
  std::vector<char> chosen(static_cast<size_t>(positives_.num_users()));
  for (size_t i = 0; i < kGroups && !activity.empty(); ++i) {
    const int64_t least = groups.empty() ? activity.front() : groups.back().most + 1;
    const int64_t most = activity[std::max<size_t>((i + 1) * activity.size() / kGroups, 1) - 1];
    if (most < least) continue;  // many users of one activity fill several groups
    ActivityGroup group{.least = least, .most = most};
    for (int64_t user = 0; user < positives_.num_users(); ++user) {
      chosen[user] = known(user) >= least && known(user) <= most;
      group.users += chosen[user] && !positives_.of(user).empty();
    }
    if (group.users == 0) continue;
    group.model = ranking_scores(model, positives_, options_.ks, &chosen);
    group.popularity = ranking_scores(popular, positives_, options_.ks, &chosen);
    groups.push_back(std::move(group));
  }
  return groups;
}

}  // namespace trainkit::rec
