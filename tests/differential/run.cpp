// Parts that TrainStep and Trainer share.
#include "run.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "model.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/optim/adagrad.h"
#include "trainkit/optim/adam.h"
#include "trainkit/optim/lr_scheduler.h"
#include "trainkit/optim/rmsprop.h"
#include "trainkit/optim/sgd.h"

namespace trainkit::differential {

void put(Record& record, const std::string& name, double value) {
  record[name] = at::scalar_tensor(value, at::kDouble);
}

void put(Record& record, const std::string& name, const at::Tensor& tensor) {
  record[name] = tensor.detach().to(at::kCPU, /*non_blocking=*/false, /*copy=*/true).contiguous();
}

std::unique_ptr<DeviceReplicator> make_devices(const Spec& spec, const Setup& setup) {
  DeviceReplicatorOptions options{.device = at::kCPU,
                                  .cpu_replicas = setup.replicas,
                                  .share_weights = setup.share_weights,
                                  .process_group = setup.group,
                                  .sharding = setup.sharding};
  options.sync_batch_norm = true;
  if (setup.sharding == Sharding::kNone) options.find_unused_parameters = setup.group != nullptr;
  return DeviceReplicator::create([&] { return make_net(spec); }, options).value();
}

namespace {

std::unique_ptr<Optimizer> make_bare_optimizer(const Spec& spec) {
  if (spec.optimizer == "sgd") {
    return std::make_unique<SGD>(SGDOptions{.lr = spec.lr,
                                            .momentum = spec.momentum,
                                            .weight_decay = spec.weight_decay,
                                            .nesterov = spec.nesterov && spec.momentum > 0});
  }
  const std::array<double, 2> betas{spec.beta1, 0.99};
  if (spec.optimizer == "adam") {
    return std::make_unique<Adam>(
        AdamOptions{.lr = spec.lr, .betas = betas, .eps = spec.eps, .weight_decay = spec.weight_decay});
  }
  if (spec.optimizer == "sparse_adam") {
    return std::make_unique<SparseAdam>(SparseAdamOptions{.lr = spec.lr, .betas = betas, .eps = spec.eps});
  }
  if (spec.optimizer == "rmsprop") {
    return std::make_unique<RMSprop>(RMSpropOptions{.lr = spec.lr,
                                                    .alpha = spec.beta1,
                                                    .eps = spec.eps,
                                                    .weight_decay = spec.weight_decay,
                                                    .momentum = spec.momentum,
                                                    .centered = spec.centered});
  }
  if (spec.optimizer == "adagrad") {
    return std::make_unique<Adagrad>(AdagradOptions{.lr = spec.lr,
                                                    .lr_decay = 0.1,
                                                    .weight_decay = spec.weight_decay,
                                                    .initial_accumulator_value = 0.05,
                                                    .eps = spec.eps});
  }
  if (spec.optimizer == "muon") {
    return std::make_unique<Muon>(
        MuonOptions{.lr = spec.lr,
                    .momentum = spec.momentum,
                    .nesterov = spec.nesterov && spec.momentum > 0,
                    .weight_decay = spec.weight_decay,
                    .betas = betas,
                    .eps = spec.eps,
                    .selects = [](const std::string& name) { return name != "head.weight"; }});
  }
  return std::make_unique<AdamW>(
      AdamWOptions{.lr = spec.lr, .betas = betas, .eps = spec.eps, .weight_decay = spec.weight_decay});
}

bool has(const Optimizer& optimizer, const at::Tensor& tensor) {
  for (const ParamGroup& group : optimizer.param_groups()) {
    for (const NamedParameter& parameter : group.params) {
      if (parameter.tensor.is_same(tensor)) return true;
    }
  }
  return false;
}

/// Adds the groups of a program, or of one of its players. An optimizer without groups gets its own later.
void add_groups(const Spec& spec, Optimizer& optimizer, std::vector<NamedParameter> all) {
  if (spec.groups != "layers") {
    optimizer.add_param_group({.params = std::move(all), .name = "all"});
    return;
  }
  for (size_t i = 0; i < all.size(); ++i) {
    ParamGroup group{.params = {all[i]},
                     .lr_multiple = 1.0 / static_cast<double>(1 + i % 3),
                     .name = fmt::format("g{}", i),
                     .trainable_from = i % 2 == 1 ? spec.thaw_at : 0};
    if (i % 2 == 1) group.weight_decay = 0.02;
    optimizer.add_param_group(std::move(group));
  }
}

/// Patterns of the names of a player's parameters.
std::vector<std::string> patterns_of(const Spec& spec, int64_t player) {
  std::vector<std::string> patterns;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    if (spec.layers[i].player == player && spec.layers[i].shares == 0) patterns.push_back(fmt::format("l{}.*", i));
  }
  if (spec.head_player == player) patterns.emplace_back("head.*");
  return patterns;
}

bool belongs(const NamedParameter& parameter, const std::vector<std::string>& patterns) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
    return parameter.name.starts_with(pattern.substr(0, pattern.size() - 1));
  });
}

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const Spec& spec, DeviceReplicator& devices, int64_t part, int64_t parts) {
  std::unique_ptr<Optimizer> optimizer = make_bare_optimizer(spec);
  if (spec.groups == "default" && parts == 1) return optimizer;
  std::vector<NamedParameter> all = trainable_parameters(*devices.module());
  const auto count = static_cast<int64_t>(all.size());
  if (parts > 1) all = {all.begin() + count * part / parts, all.begin() + count * (part + 1) / parts};
  add_groups(spec, *optimizer, std::move(all));
  return optimizer;
}

std::vector<Player> make_players(const Spec& spec, DeviceReplicator& devices, std::vector<at::Tensor>* kept,
                                 const OnCall& on_call) {
  std::vector<Player> players;
  const auto changes = [](const LayerSpec& layer) { return layer.frozen || layer.change_at > 0; };
  const bool is_fixed = std::none_of(spec.layers.begin(), spec.layers.end(), changes);
  for (int64_t i = 0; i < player_count(spec); ++i) {
    const Spec own = of_player(spec, i);
    Player player{.name = fmt::format("p{}", i),
                  .parameters = patterns_of(spec, i),
                  .optimizer = make_bare_optimizer(own),
                  .loss = make_loss(own, kept, on_call),
                  .schedule = make_schedule(own),
                  .grad_clip = own.clip,
                  .ema_decay = own.ema,
                  .every = i == 0 ? 1 : spec.players[static_cast<size_t>(i - 1)].every};
    if (own.groups != "default") {
      std::vector<NamedParameter> all = trainable_parameters(*devices.module());
      std::erase_if(all, [&](const NamedParameter& one) { return !belongs(one, player.parameters); });
      if (!all.empty()) add_groups(own, *player.optimizer, std::move(all));
      if (own.groups == "one" && is_fixed && spec.changes.empty()) player.parameters.clear();  // those of the group
    }
    players.push_back(std::move(player));
  }
  return players;
}

SharedFunction make_shared_of(const Spec& spec, const Setup& setup) {
  if (!has_shared(spec)) return nullptr;
  return make_shared(/*detached=*/spec.accumulate * setup.micro_batches > 1);
}

std::shared_ptr<const LRSchedule> make_schedule(const Spec& spec) {
  if (spec.schedule.empty()) return nullptr;
  return create_schedule({.name = spec.schedule,
                          .total_steps = spec.schedule_steps,
                          .warmup_steps = spec.warmup,
                          .min_factor = spec.min_factor,
                          .period_steps = spec.period,
                          .period_growth = spec.growth,
                          .gamma = spec.gamma,
                          .milestones = {1, 1 + std::max<int64_t>(1, spec.period)},
                          .power = static_cast<double>(spec.growth)})
      .value();
}

void change_model(const Spec& spec, int64_t step, DeviceReplicator& devices, const Optimizers& optimizers) {
  auto& net = *devices.module()->as<Net>();
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const LayerSpec& layer = spec.layers[i];
    if (layer.change_at != step || !net.layer(i) || layer.shares > 0) continue;
    Optimizer& optimizer = *optimizers.at(static_cast<size_t>(layer.player));
    ParamGroup late;
    for (const auto& parameter : net.layer(i)->named_parameters()) {
      at::Tensor tensor = parameter.value();
      tensor.requires_grad_(!tensor.requires_grad());
      if (tensor.requires_grad() && !has(optimizer, tensor)) {
        late.params.push_back({"l" + std::to_string(i) + "." + parameter.key(), tensor});
      }
    }
    if (!late.params.empty()) optimizer.add_param_group(std::move(late));
  }
}

void put_state(Record& record, const std::string& place, DeviceReplicator& devices, const Optimizers& optimizers) {
  std::set<const void*> seen;  // a tied weight counts once, under its first name
  for (const auto& parameter : devices.module()->named_parameters()) {
    if (seen.insert(parameter.value().unsafeGetTensorImpl()).second) {
      put(record, place + "param/" + parameter.key(), parameter.value());
    }
  }
  for (const auto& buffer : devices.module()->named_buffers())
    put(record, place + "buffer/" + buffer.key(), buffer.value());
  if (devices.sharding() != Sharding::kNone) return;  // the optimizer has parts of the parameters
  for (const Optimizer* optimizer : optimizers) {
    for (const auto& [name, value] : optimizer->state_dict()) {
      const auto* tensor = std::get_if<at::Tensor>(&value);
      if (tensor && name.starts_with("state.")) put(record, place + "optimizer/" + name.substr(6), *tensor);
    }
    put_rates(record, place + "next_lr/", *optimizer);
  }
}

void put_rates(Record& record, const std::string& place, const Optimizer& optimizer) {
  const std::vector<double> rates = optimizer.group_lrs();
  for (size_t i = 0; i < rates.size(); ++i) {
    for (const NamedParameter& parameter : optimizer.param_groups()[i].params) {
      put(record, place + parameter.name, rates[i]);
    }
  }
}

void put_gradients(Record& record, const std::string& place, std::string_view player, const Optimizers& optimizers) {
  const Optimizer& optimizer = *optimizers.at(player.empty() ? 0 : static_cast<size_t>(player.back() - '0'));
  double squares = 0;
  for (const ParamGroup& group : optimizer.param_groups()) {
    for (const NamedParameter& parameter : group.params) {
      const at::Tensor& gradient = parameter.tensor.grad();
      if (!gradient.defined()) continue;
      const at::Tensor values = gradient.is_sparse() ? gradient.coalesce().values() : gradient;
      squares += values.to(at::kDouble).square().sum().item<double>();
    }
  }
  put(record, place + (player.empty() ? "" : std::string(player) + ".") + "gradients", std::sqrt(squares));
}

Record run_program(const Spec& spec, const Setup& setup) {
  Record record;
  try {
    record = spec.loop == "step" ? run_steps(spec, setup) : run_trainer(spec, setup);
  } catch (...) {
    put(record, "error/" + error_line(status_from_current_exception()), 1);
  }
  return record;
}

}  // namespace trainkit::differential
