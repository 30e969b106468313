#pragma once
// What a Trainer keeps between its runs.

#include <memory>
#include <utility>
#include <vector>

#include "distributed/replicas/replica_strategy.h"
#include "train/run/training_run.h"
#include "train/update/players.h"
#include "train/update/step_parameters.h"
#include "trainkit/train/trainer.h"

namespace trainkit {

class Trainer::Impl {
 public:
  Impl(detail::ReplicaStrategy& devices, std::unique_ptr<Optimizer> optimizer, const TrainerOptions& options)
      : devices_(devices), optimizer_(std::move(optimizer)), trained_{*optimizer_}, options_(options) {
    detail::add_parameters(devices_, *optimizer_);
  }
  Impl(detail::ReplicaStrategy& devices, std::vector<Player> players, SharedFunction shared,
       const TrainerOptions& options)
      : devices_(devices), trained_{*players.front().optimizer, players, std::move(shared)}, options_(options) {
    detail::divide_among_players(devices_, trained_.players);
  }

  detail::ReplicaStrategy& devices_;
  std::unique_ptr<Optimizer> optimizer_;  // null with players, which have theirs
  Trained trained_;
  TrainerOptions options_;
  EarlierFits fits_;
  bool has_session_ = false;  // that has not ended
};

}  // namespace trainkit
