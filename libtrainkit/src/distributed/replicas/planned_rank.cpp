#include "distributed/replicas/planned_rank.h"

#include "distributed/replicas/replica_tools.h"

namespace trainkit::detail {

void PlannedRank::divide_parameters(const std::function<bool(const at::Tensor&)>& is_whole) {
  if (shards_) return;
  const auto nothing = [](const at::Tensor&) { return ShardCollectives::Work(); };
  shards_ = std::make_unique<ParameterShards>(
      trained_parameters(*module()), is_whole, options_,
      ShardCollectives{.rank = 0,
                       .ranks = ranks_,
                       .reduce_scatter = nothing,
                       .all_gather = [](const auto&) { return ShardCollectives::Work(); },
                       .wait = [](const auto&, const std::string&) {},
                       .all_reduce = [](const at::Tensor&) {},
                       .empty_cache = empty_cache_,
                       .keeps_weights = false});
}

void PlannedRank::run(const Body& body, bool reduce_gradients, const OnSent&) {
  shards_->begin(reduce_gradients || shards_->reduction().reduces_every_run());
  if (const at::Tensor loss = body(0); loss.defined()) loss.backward();
  shards_->reduction().end(/*contribute=*/true);
}

}  // namespace trainkit::detail
