#include "spec.h"

#include <algorithm>

namespace trainkit::differential {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(LayerSpec, kind, out, no_bias, eval, frozen, change_at, shares, branch,
                                                player)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(PlayerSpec, optimizer, lr, momentum, nesterov, centered, beta1, eps,
                                                weight_decay, groups, thaw_at, schedule, schedule_steps, warmup,
                                                min_factor, period, growth, gamma, clip, ema, loss, factor, shared,
                                                every)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(ChangeSpec, after, what, player, group, lr, layer)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(BufferSpec, capacity, min_size, samples_per_insert, append, in_place,
                                                gives_up, thread, horizon, simulators, passes, discount, lambda,
                                                normalize, fills)
// The macro takes 63 fields at most.
#define TRAINKIT_SPEC_FIELDS(CALL)                                                                                     \
  NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(CALL, seed, number, oracle, loop, dtype, input, layers, tied_head,          \
                                           exported, rows, batch_size, drop_last, sampler, dataset, workers, source,   \
                                           buffer, steps, epochs, fits, accumulate, optimizer, lr, momentum, nesterov, \
                                           centered, beta1, eps, weight_decay, groups, thaw_at))                       \
  NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(                                                                            \
      CALL, schedule, schedule_steps, warmup, min_factor, period, growth, gamma, plateau, clip, ema, keep_grads,       \
      skip_nonfinite, bad_rows, loss, factor, weights, state, keeps, penalty, metric, evaluate_every, evaluation_rows, \
      early_stopping, best, two_steps, stray_backward, players, head_player, shared, changes, events, parts,           \
      own_weights, on_replicas, sharding, at_step, kill))
void to_json(nlohmann::json& nlohmann_json_j, const Spec& nlohmann_json_t) { TRAINKIT_SPEC_FIELDS(NLOHMANN_JSON_TO) }
void from_json(const nlohmann::json& nlohmann_json_j, Spec& nlohmann_json_t) {
  const Spec nlohmann_json_default_obj;
  TRAINKIT_SPEC_FIELDS(NLOHMANN_JSON_FROM_WITH_DEFAULT)
}
#undef TRAINKIT_SPEC_FIELDS

namespace {

void drop_defaults(nlohmann::json& json, const nlohmann::json& defaults) {
  for (const auto& [name, value] : defaults.items()) {
    if (json.at(name) == value) json.erase(name);
  }
}

}  // namespace

nlohmann::json to_short_json(const Spec& spec) {
  nlohmann::json json = spec;
  drop_defaults(json, Spec());
  if (json.contains("buffer")) drop_defaults(json["buffer"], BufferSpec());
  const auto shorten = [&](const char* list, const nlohmann::json& defaults) {
    if (!json.contains(list)) return;
    for (nlohmann::json& entry : json[list]) drop_defaults(entry, defaults);
  };
  shorten("layers", LayerSpec());
  shorten("players", PlayerSpec());
  shorten("changes", ChangeSpec());
  return json;
}

nlohmann::json full_json(const Spec& spec) { return nlohmann::json(spec); }

Spec spec_from_json(const nlohmann::json& json) { return json.get<Spec>(); }

Spec of_player(const Spec& spec, int64_t player) {
  if (player == 0) return spec;
  nlohmann::json json = spec;
  json.update(nlohmann::json(spec.players.at(static_cast<size_t>(player - 1))));
  return json.get<Spec>();
}

PlayerSpec settings_of(const Spec& spec) {
  auto player = nlohmann::json(spec).get<PlayerSpec>();
  player.shared = "";
  return player;
}

int64_t player_count(const Spec& spec) { return 1 + static_cast<int64_t>(spec.players.size()); }

bool has_shared(const Spec& spec) {
  const auto uses = [](const PlayerSpec& player) { return !player.shared.empty(); };
  return !spec.shared.empty() || std::any_of(spec.players.begin(), spec.players.end(), uses);
}

}  // namespace trainkit::differential
