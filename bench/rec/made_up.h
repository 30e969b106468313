#pragma once
/// Interactions with the size of MovieLens 1M and others, drawn from the same distribution as in peers/bpr_mf.py.

#include <ATen/core/Tensor.h>

#include <unordered_set>

#include "gpt2_recommender/interactions.h"
#include "trainkit/core/random.h"

namespace trainkit::bench {

using namespace trainkit::rec;

/// `count` distinct pairs in random order; the popularity of an item is proportional to 1/sqrt(number).
inline Interactions made_up_pairs(int64_t users, int64_t items, int64_t count) {
  Interactions made;
  made.users.resize(static_cast<size_t>(users));
  made.items.resize(static_cast<size_t>(items));
  RandomStream random(0);
  std::unordered_set<int64_t> seen;
  while (made.size() < count) {
    const auto user = static_cast<int32_t>(random.below(static_cast<uint64_t>(users)));
    const double uniform = random.uniform();
    const auto item = static_cast<int32_t>(static_cast<double>(items) * uniform * uniform);
    if (!seen.insert(int64_t{user} * items + item).second) continue;
    made.user.push_back(user);
    made.item.push_back(item);
  }
  made.time.resize(made.user.size());
  return made;
}

/// 6,040 users, 3,706 items.
inline Interactions movielens_sized(int64_t count) { return made_up_pairs(6040, 3706, count); }

inline Split all_for_training(const Interactions& interactions) {
  return {"", std::vector<Part>(interactions.user.size(), Part::kTrain)};
}

}  // namespace trainkit::bench
