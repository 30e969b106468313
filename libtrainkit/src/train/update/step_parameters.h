#pragma once
// Gives an optimizer the parameters that it updates on this rank. Internal to TrainStep and Trainer.

#include <cstdint>
#include <vector>

#include "distributed/replicas/replica_strategy.h"
#include "trainkit/optim/optimizer.h"

namespace trainkit::detail {

/// Gives an optimizer without parameters those of the model. If the replicator divides them (Sharding), replaces the
/// optimizer's parameters by the parts that this rank updates. Every rank calls it.
void add_parameters(ReplicaStrategy& devices, Optimizer& optimizer);

/// Adds groups of parts of a copy of the weights, which a step sends to the other ranks bucket by bucket.
void add_shards(Optimizer& optimizer, std::vector<ParamGroup> groups, ReplicaStrategy& devices, int64_t copy);

}  // namespace trainkit::detail
