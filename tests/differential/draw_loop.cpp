// Draws what a host does around the steps of a program: players, rates and freezing, events and sources.
#include <algorithm>

#include "draw.h"

namespace trainkit::differential {
namespace {

/// Gives the layers with weights and the head to players. The first of each player's is trained in every step.
/// Returns false if there are too few.
bool divide_model(Dice& dice, Spec& spec, int64_t count) {
  std::vector<int64_t*> sure{&spec.head_player}, others;
  for (LayerSpec& layer : spec.layers) {
    if (!has_weights(layer)) continue;
    const bool is_sure = !layer.frozen && layer.change_at == 0 && !layer.branch;
    (is_sure ? sure : others).push_back(&layer.player);
  }
  if (std::ssize(sure) < count) return false;
  // The head belongs to the first or to the last player, mostly.
  if (dice.chance(50)) std::reverse(sure.begin(), sure.end());
  for (size_t i = 0; i < sure.size(); ++i) {
    *sure[i] = static_cast<int64_t>(i) < count ? static_cast<int64_t>(i) : dice.between(0, count - 1);
  }
  for (int64_t* player : others) *player = dice.between(0, count - 1);
  return true;
}

/// Whether players before `player` leave the layers before the head as they are.
bool keeps_layers_before(const Spec& spec, int64_t player) {
  return std::none_of(spec.layers.begin(), spec.layers.end(),
                      [&](const LayerSpec& layer) { return has_weights(layer) && layer.player < player; });
}

/// The features that players share have one graph, which the weights of the layers belong to.
void draw_shared(Dice& dice, Spec& spec) {
  const bool may_keep_graph = spec.accumulate == 1 && spec.oracle != "accumulation";
  const auto draw_use = [&](int64_t player) -> std::string {
    std::vector<std::string> uses{""};
    if (spec.head_player == player) uses.emplace_back("detached");
    if (may_keep_graph && keeps_layers_before(spec, player)) uses.emplace_back("graph");
    return uses[static_cast<size_t>(dice.between(0, std::ssize(uses) - 1))];
  };
  spec.shared = draw_use(0);
  for (size_t i = 0; i < spec.players.size(); ++i) {
    spec.players[i].shared = draw_use(static_cast<int64_t>(i) + 1);
  }
}

void draw_players(Dice& dice, Spec& spec) {
  const int64_t count = dice.between(2, 3);
  if (spec.oracle == "shards" || spec.two_steps || !divide_model(dice, spec, count)) return;
  // Optimizers that divide by a gradient's size enlarge the rounding in a parameter before a norm, whose true gradient
  // is 0, and a player may have no other one.
  const auto is_norm = [](const LayerSpec& layer) { return layer.kind.ends_with("_norm"); };
  const bool has_norm = std::any_of(spec.layers.begin(), spec.layers.end(), is_norm);
  if (has_norm) spec.eps = 1e-4;
  const bool is_sparse = spec.optimizer == "sparse_adam";
  if (is_sparse && spec.layers.front().player != 0) spec.optimizer = "adam";
  for (int64_t i = 1; i < count; ++i) {
    Spec own = spec;
    own.clip = own.ema = 0;
    own.schedule = "";
    draw_optimizer(dice, own);
    if (own.optimizer == "sparse_adam") own.optimizer = "adam";
    draw_schedule(dice, own);
    settle_optimizer(own);
    if (has_norm) own.eps = 1e-4;
    own.keep_grads = spec.keep_grads;
    PlayerSpec player = settings_of(own);
    if (spec.loss != "cross_entropy") player.loss = dice.one({"mse", "huber"});
    player.factor = dice.one_of({1.0, -0.5, 2.0});
    player.every = dice.one_of<int64_t>({1, 1, 2, 3});
    spec.players.push_back(player);
  }
  spec.plateau = 0;
  if (spec.oracle != "retry" && dice.chance(60)) draw_shared(dice, spec);
}

/// Names of groups of a player's optimizer that are there whatever its parameters are.
std::string draw_group(Dice& dice, const Spec& own) {
  if (own.optimizer == "sparse_adam" || dice.chance(40)) return "";
  if (own.groups == "one") return "all";
  if (own.groups == "layers") return "g0";
  return own.players.empty() ? "no_decay" : "";  // the head's bias
}

void draw_changes(Dice& dice, Spec& spec) {
  if (spec.loop != "session" || spec.fits > 1) return;
  const int64_t last = std::max<int64_t>(1, spec.steps > 0 ? spec.steps - 1 : 4);
  if (dice.chance(60)) {
    for (int64_t i = dice.between(1, 3); i > 0; --i) {
      ChangeSpec change{.after = dice.between(0, last), .lr = dice.one_of({0.02, 0.005})};
      change.player = dice.between(0, player_count(spec) - 1);
      change.group = draw_group(dice, of_player(spec, change.player));
      spec.changes.push_back(change);
    }
  }
  if (spec.oracle == "shards" || dice.chance(40)) return;
  for (int64_t i = 0; i < std::ssize(spec.layers); ++i) {
    const LayerSpec& layer = spec.layers[static_cast<size_t>(i)];
    if (!has_weights(layer) || dice.chance(40)) continue;
    // A player without anything to train ends with an error.
    const auto is_other = [&](const LayerSpec& other) {
      return &other != &layer && other.player == layer.player && has_weights(other) && !other.frozen && !other.branch;
    };
    const bool may_freeze = spec.head_player == layer.player;
    if (!may_freeze && std::none_of(spec.layers.begin(), spec.layers.begin() + i, is_other)) continue;
    const int64_t first = dice.between(0, last);
    spec.changes.push_back({.after = first, .what = layer.frozen ? "thaw" : "freeze", .layer = i});
    if (dice.chance(50)) {
      spec.changes.push_back({.after = first + 1, .what = layer.frozen ? "freeze" : "thaw", .layer = i});
    }
  }
}

/// Groups of "layers" that are trained later.
void draw_thaw(Dice& dice, Spec& spec) {
  const auto may_lack = [](const LayerSpec& layer) { return layer.branch || layer.frozen || layer.change_at > 0; };
  const bool freezes = std::any_of(spec.changes.begin(), spec.changes.end(),
                                   [](const ChangeSpec& change) { return change.what != "lr"; });
  if (spec.oracle == "shards" || spec.two_steps || freezes) return;
  if (std::any_of(spec.layers.begin(), spec.layers.end(), may_lack)) return;
  if (spec.tied_head && has_shared(spec)) return;
  if (spec.groups == "layers" && dice.chance(50)) spec.thaw_at = dice.between(1, 3);
  for (PlayerSpec& player : spec.players) {
    if (player.groups == "layers" && dice.chance(50)) player.thaw_at = dice.between(1, 3);
  }
}

/// Of a rank; the batch of a program has rows of all ranks.
BufferSpec draw_buffer(Dice& dice, Spec& spec, int64_t batch_size) {
  BufferSpec buffer;
  if (spec.source == "replay") {
    buffer.min_size = dice.between(1, 6);
    buffer.capacity = buffer.min_size + dice.between(0, 12);
    buffer.samples_per_insert = dice.one_of({0.25, 1.0, 1.5, 4.0, 16.0});
    buffer.append = dice.between(1, 5);
    buffer.in_place = dice.chance(60);
    buffer.gives_up = dice.chance(30);
    buffer.thread = dice.chance(40);
    return buffer;
  }
  const int64_t batches = dice.between(1, 3);
  const bool is_wide = dice.chance(50);
  buffer.horizon = is_wide ? batches : batch_size;
  buffer.simulators = is_wide ? batch_size : batches;
  buffer.passes = dice.between(1, 3);
  buffer.discount = dice.one_of({1.0, 0.5});
  buffer.lambda = dice.one_of({1.0, 0.5, 0.0});
  buffer.normalize = dice.chance(50);
  buffer.fills = spec.loop == "session" && dice.chance(40);
  return buffer;
}

/// Programs that make their own data.
void draw_made_source(Dice& dice, Spec& spec) {
  // Rounding may decide what a policy does.
  const bool has_rollout = spec.oracle != "sources" && (spec.oracle != "torch" || spec.dtype == "float64");
  const bool has_replay = spec.loop == "session";
  const bool may = spec.loop != "step" && spec.oracle != "workers" && (has_rollout || has_replay);
  if (!may || !dice.chance(35)) return;
  spec.source = !has_rollout || (has_replay && dice.chance(50)) ? "replay" : "rollout";
  const bool divides = spec.oracle == "ranks" || spec.oracle == "shards";
  spec.buffer = draw_buffer(dice, spec, divides ? spec.batch_size / spec.parts : spec.batch_size);
  spec.fits = 1;
  spec.workers = 0;
  spec.drop_last = false;
  spec.sampler = "sequential";
  spec.dataset = "plain";
  if (spec.source == "rollout" && (spec.steps > 0 || spec.epochs > 0)) return;
  spec.epochs = 0;
  spec.steps = std::max<int64_t>(2, spec.steps);
}

void draw_source(Dice& dice, Spec& spec) {
  draw_made_source(dice, spec);
  if (!spec.source.empty()) return;
  const bool may = spec.oracle == "resume" || spec.oracle == "ranks" || spec.oracle == "replicas";
  if (spec.loop != "session" || !(spec.oracle == "sources" || (may && dice.chance(50)))) return;
  spec.source = dice.one({"queue", "batches"});
  spec.fits = 1;
  spec.epochs = 0;
  spec.steps = std::max<int64_t>(2, spec.steps);
  // Without epochs a step takes its batches from two of them.
  const int64_t step_rows = spec.batch_size * spec.accumulate;
  spec.rows = (spec.rows + step_rows - 1) / step_rows * step_rows;
}

}  // namespace

void draw_host(Dice& dice, Spec& spec) {
  if (spec.oracle == "events" || (spec.oracle != "shards" && !spec.two_steps && dice.chance(20))) spec.events = true;
  draw_source(dice, spec);
  if (dice.chance(40)) draw_players(dice, spec);
  draw_changes(dice, spec);
  draw_thaw(dice, spec);
}

}  // namespace trainkit::differential
