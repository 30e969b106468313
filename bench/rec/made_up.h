#pragma once
/// Interactions with the size of MovieLens 1M, drawn from the same distribution as in peers/bpr_mf.py.

#include <ATen/core/Tensor.h>

#include <unordered_set>

#include "gpt2_recommender/interactions.h"
#include "trainkit/core/random.h"

namespace trainkit::bench {

using namespace trainkit::rec;

/// 6,040 users, 3,706 items, `count` distinct pairs in random order; the popularity of an item is proportional to
/// 1/sqrt(number).
inline Interactions movielens_sized(int64_t count) {
  Interactions made;
  made.users.resize(6040);
  made.items.resize(3706);
  RandomStream random(0);
  std::unordered_set<int64_t> seen;
  while (made.size() < count) {
    const auto user = static_cast<int32_t>(random.below(6040));
    const double uniform = random.uniform();
    const auto item = static_cast<int32_t>(3706 * uniform * uniform);
    if (!seen.insert(int64_t{user} * 3706 + item).second) continue;
    made.user.push_back(user);
    made.item.push_back(item);
  }
  made.time.resize(made.user.size());
  return made;
}

inline Split all_for_training(const Interactions& interactions) {
  return {"", std::vector<Part>(interactions.user.size(), Part::kTrain)};
}

}  // namespace trainkit::bench
