#include "train/update/players.h"

#include <absl/status/statusor.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <utility>

#include "distributed/replicas/replica_tools.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

[[noreturn]] void refuse(const std::string& player, std::string problem, std::string hint = "") {
  throw absl::BadStatusOrAccess(to_status({.exit_code = ExitCode::kUsage,
                                           .id = "train.players",
                                           .field = player,
                                           .problem = std::move(problem),
                                           .hint = std::move(hint)},
                                          absl::StatusCode::kInvalidArgument));
}

/// Whether * in `pattern` can stand for characters so that it is `name`.
bool matches(std::string_view pattern, std::string_view name) {
  const size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == name;
  if (!name.starts_with(pattern.substr(0, star))) return false;
  const std::string_view rest = pattern.substr(star + 1);
  for (size_t i = star; i <= name.size(); ++i) {
    if (matches(rest, name.substr(i))) return true;
  }
  return false;
}

bool is_name(const std::string& name) {
  const auto fits = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; };
  return !name.empty() && std::all_of(name.begin(), name.end(), fits);
}

void check(const Player& player, size_t index, const std::set<const Optimizer*>& before) {
  if (!is_name(player.name)) refuse(player.name, "is no name of a player: letters, digits and underscores");
  if (!player.optimizer) refuse(player.name, "has no optimizer");
  if (before.contains(player.optimizer.get())) refuse(player.name, "has the optimizer of another player");
  if (!player.loss) refuse(player.name, "has no loss function");
  if (player.every < 1) refuse(player.name, fmt::format("has every = {}; it must be at least 1", player.every));
  if (index == 0 && player.every != 1) {
    refuse(player.name, "is the first player, which takes part in every step", "put it after a player of every step");
  }
  if (player.parameters.empty() && player.optimizer->param_groups().empty()) {
    refuse(player.name, "has no parameters", "name the parameters of the player, or add groups to its optimizer");
  }
}

/// Names of the model's parameters that belong to a player, frozen ones included.
std::set<std::string> names_of(const Player& player, const torch::nn::Module& model) {
  std::set<std::string> names;
  std::set<const void*> tensors;
  for (const auto& [name, tensor] : unique_parameters(model)) {
    const auto is_own = [&, own = tensor](const NamedParameter& one) { return one.tensor.is_same(own); };
    bool belongs = std::any_of(player.parameters.begin(), player.parameters.end(),
                               [&, text = name](const std::string& pattern) { return matches(pattern, text); });
    for (const ParamGroup& group : player.optimizer->param_groups()) {
      belongs |= player.parameters.empty() && std::any_of(group.params.begin(), group.params.end(), is_own);
    }
    if (!belongs) continue;
    names.insert(name);
    tensors.insert(tensor.unsafeGetTensorImpl());
  }
  if (names.empty()) refuse(player.name, "has parameters that the model does not have", "see named_parameters()");
  for (const ParamGroup& group : player.optimizer->param_groups()) {
    for (const NamedParameter& parameter : group.params) {
      if (!tensors.contains(parameter.tensor.unsafeGetTensorImpl())) {
        refuse(player.name, fmt::format("has an optimizer with {}, which is none of its parameters", parameter.name));
      }
    }
  }
  return names;
}

void add_groups(const Player& player, const std::set<std::string>& names, const torch::nn::Module& model) {
  if (!player.optimizer->param_groups().empty()) return;
  std::vector<ParamGroup> groups = player.optimizer->groups_for(model);
  for (ParamGroup& group : groups) {
    std::erase_if(group.params, [&](const NamedParameter& parameter) { return !names.contains(parameter.name); });
  }
  std::erase_if(groups, [](const ParamGroup& group) { return group.params.empty(); });
  if (groups.empty()) refuse(player.name, "has no parameter that is trained (requires_grad)");
  player.optimizer->add_param_groups(std::move(groups));
}

}  // namespace

void divide_among_players(ReplicaStrategy& devices, const std::vector<Player>& players) {
  if (players.empty()) refuse("players", "must be at least one");
  if (devices.sharding() != Sharding::kNone) {
    refuse("players", "cannot divide a training state that is divided among ranks (sharding)",
           "use DeviceReplicatorOptions::sharding none, or one player");
  }
  std::map<std::string, std::string> owners;  // of parameters
  std::set<std::string> known;
  std::set<const Optimizer*> optimizers;
  std::vector<std::set<std::string>> phases;
  for (size_t i = 0; i < players.size(); ++i) {
    const Player& player = players[i];
    check(player, i, optimizers);
    optimizers.insert(player.optimizer.get());
    if (!known.insert(player.name).second) refuse(player.name, "is the name of two players");
    phases.push_back(names_of(player, *devices.module()));
    for (const std::string& name : phases.back()) {
      const auto [owner, is_new] = owners.emplace(name, player.name);
      if (!is_new) refuse(player.name, fmt::format("has parameter {}, which belongs to {}", name, owner->second));
    }
    add_groups(player, phases.back(), *devices.module());
  }
  devices.phases().set(std::move(phases));
}

std::vector<std::string> matching_parameters(const torch::nn::Module& model, std::string_view pattern) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : unique_parameters(model)) {
    if (matches(pattern, name)) names.push_back(name);
  }
  return names;
}

void check_player_options(const TrainStepOptions& options, const std::string& graph_obstacle) {
  if (options.grad_clip != 0) refuse("grad_clip", "belongs to a player", "set Player::grad_clip");
  if (options.ema_decay != 0) refuse("ema_decay", "belongs to a player", "set Player::ema_decay");
  if (options.cuda_graph == CudaGraph::kOn && !graph_obstacle.empty()) {
    refuse("cuda_graph", "steps cannot be captured: " + graph_obstacle);
  }
}

void throw_kept_graph(const std::string& name) {
  refuse("shared", fmt::format("tensor {} has a graph, and the step has several micro-batches", name),
         "return it detached, compute it in the losses, or use grad_accum_steps 1");
}

}  // namespace trainkit::detail
