#include "coverage.h"

#include <fmt/format.h>

#include <map>

#include "made.h"

namespace trainkit::differential {

std::set<std::string> features(const Spec& spec) {
  const nlohmann::json json = to_short_json(spec);
  std::set<std::string> all{"oracle " + spec.oracle, "loop " + spec.loop,       "dtype " + spec.dtype,
                            "input " + spec.input,   "loss " + spec.loss,       "optimizer " + spec.optimizer,
                            "groups " + spec.groups, "sampler " + spec.sampler, "dataset " + spec.dataset};
  for (const auto& [name, value] : json.items()) {
    if (value.is_boolean()) all.insert(name);
  }
  for (const char* name : {"schedule", "weights", "metric", "sharding", "source"}) {
    if (json.contains(name)) all.insert(std::string(name) + " " + json[name].get<std::string>());
  }
  for (const char* name : {"clip", "ema", "evaluate_every", "early_stopping", "plateau", "warmup", "momentum",
                           "workers", "weight_decay"}) {
    if (json.contains(name)) all.insert(name);
  }
  if (!spec.players.empty()) all.insert("players");
  for (int64_t i = 0; i < player_count(spec); ++i) {
    const Spec own = of_player(spec, i);
    if (i > 0) all.insert("optimizer of a player " + own.optimizer);
    if (i > 0 && spec.players[static_cast<size_t>(i - 1)].every > 1) all.insert("player every few steps");
    if (!own.shared.empty()) all.insert("shared features " + own.shared);
    if (own.thaw_at > 0) all.insert("group thaws");
  }
  for (const ChangeSpec& change : spec.changes) {
    all.insert(change.what == "lr" && !change.group.empty() ? "set_lr of a group" : "change " + change.what);
  }
  if (spec.accumulate > 1) all.insert("accumulation");
  if (spec.fits > 1) all.insert("several fits");
  if (!spec.bad_rows.empty()) all.insert("nonfinite rows");
  if (has_buffer(spec)) {
    const nlohmann::json buffer = json.value("buffer", nlohmann::json::object());
    for (const auto& [name, value] : buffer.items()) {
      if (value.is_boolean()) all.insert("buffer " + name);
    }
  } else if (spec.rows % spec.batch_size != 0) {
    all.insert("incomplete batch");
  }
  if (spec.source == "replay" && spec.buffer.capacity < 3 * spec.batch_size) all.insert("small replay buffer");
  for (const LayerSpec& layer : spec.layers) {
    all.insert("layer " + layer.kind);
    if (layer.eval) all.insert("layer in eval");
    if (layer.frozen) all.insert("frozen layer");
    if (layer.change_at > 0) all.insert(layer.frozen ? "unfrozen later" : "frozen later");
    if (layer.shares > 0) all.insert("shared layer");
    if (layer.branch) all.insert("branch");
  }
  return all;
}

bool print_coverage(uint64_t seed, int64_t count) {
  using Pairs = std::map<std::pair<std::string, std::string>, int64_t>;
  std::map<std::string, int64_t> singles;
  Pairs pairs, allowed;
  for (int64_t number = 0; number < 10 * count; ++number) {
    const std::set<std::string> all = features(draw(seed, number));
    for (auto a = all.begin(); a != all.end(); ++a) {
      if (number < count) ++singles[*a];
      for (auto b = std::next(a); b != all.end(); ++b) {
        ++allowed[{*a, *b}];
        if (number < count) ++pairs[{*a, *b}];
      }
    }
  }
  int64_t rare = 0;
  for (const auto& [name, times] : singles) {
    fmt::print("{:6} {}\n", times, name);
    if (times < count / 100) ++rare;
  }
  int64_t rare_pairs = 0;
  for (const auto& [pair, times] : allowed) {
    const int64_t now = pairs[pair];
    if (now >= count / 1000) continue;
    ++rare_pairs;
    fmt::print("{:6} {} + {}\n", now, pair.first, pair.second);
  }
  fmt::print("{} programs: {} features, {} of them fewer than {} times; {} pairs, {} of them fewer than {} times\n",
             count, singles.size(), rare, count / 100, allowed.size(), rare_pairs, count / 1000);
  return rare == 0 && rare_pairs == 0;
}

}  // namespace trainkit::differential
