#include "spec.h"

namespace trainkit::differential {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(LayerSpec, kind, out, no_bias, eval, frozen, change_at, shares, branch)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Spec, seed, number, oracle, loop, dtype, input, layers, tied_head, rows,
                                                batch_size, drop_last, sampler, dataset, workers, steps, epochs, fits,
                                                accumulate, optimizer, lr, momentum, nesterov, centered, beta1, eps,
                                                weight_decay, groups, schedule, schedule_steps, warmup, min_factor,
                                                period, growth, gamma, plateau, clip, ema, keep_grads, skip_nonfinite,
                                                bad_rows, loss, weights, state, keeps, penalty, metric, evaluate_every,
                                                evaluation_rows, early_stopping, best, two_steps, stray_backward, parts,
                                                own_weights, on_replicas, sharding, at_step, kill)

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
  if (!json.contains("layers")) return json;
  for (nlohmann::json& layer : json["layers"]) drop_defaults(layer, LayerSpec());
  return json;
}

nlohmann::json full_json(const Spec& spec) { return nlohmann::json(spec); }

Spec spec_from_json(const nlohmann::json& json) { return json.get<Spec>(); }

}  // namespace trainkit::differential
