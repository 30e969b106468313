#pragma once
// Checks the players of a step, and gives each its parameters. Internal to TrainStep and Trainer.

#include <string>
#include <string_view>
#include <vector>

#include "distributed/replicas/replica_strategy.h"
#include "trainkit/train/player.h"
#include "trainkit/train/step_options.h"

namespace trainkit::detail {

/// Gives the optimizers of players their groups, and `devices` the phases. Throws absl::BadStatusOrAccess with an Error
/// of exit code 2 (train.players) for players that cannot be.
void divide_among_players(ReplicaStrategy& devices, const std::vector<Player>& players);

/// Returns the model's parameters whose names match `pattern`, in which * stands for any characters.
std::vector<std::string> matching_parameters(const torch::nn::Module& model, std::string_view pattern);

/// The same error for options that the players have, and for CUDA graphs that must be possible although there is an
/// obstacle.
void check_player_options(const TrainStepOptions& options, const std::string& graph_obstacle);

/// Throws the error of a shared tensor with a graph where a step has several micro-batches.
[[noreturn]] void throw_kept_graph(const std::string& name);

}  // namespace trainkit::detail
