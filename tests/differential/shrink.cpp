#include "shrink.h"

#include <cctype>
#include <optional>

namespace trainkit::differential {
namespace {

bool is_list(const std::string& name) { return name == "layers" || name == "players" || name == "changes"; }

/// Numbers above `removed` become one less, and `removed` itself the one before.
void renumber(nlohmann::json& object, const char* name, int64_t removed) {
  const auto number = object.value(name, int64_t{0});
  if (number >= removed && number > 0) object[name] = number - 1;
}

nlohmann::json without_player(const nlohmann::json& json, int64_t player) {
  nlohmann::json less = json;
  less["players"].erase(static_cast<size_t>(player - 1));
  renumber(less, "head_player", player);
  for (const char* list : {"layers", "changes"}) {
    if (!less.contains(list)) continue;
    for (nlohmann::json& entry : less[list]) renumber(entry, "player", player);
  }
  return less;
}

/// Nothing if another layer uses the module of this one.
std::optional<nlohmann::json> without_layer(const nlohmann::json& json, int64_t i) {
  nlohmann::json less = json;
  less["layers"].erase(static_cast<size_t>(i));
  for (nlohmann::json& layer : less["layers"]) {
    const auto shares = layer.value("shares", int64_t{0});
    if (shares == i + 1) return std::nullopt;
    if (shares > i + 1) layer["shares"] = shares - 1;
  }
  if (!less.contains("changes")) return less;
  for (nlohmann::json& change : less["changes"]) {
    if (change.value("what", "lr") == "lr") continue;
    const auto layer = change.value("layer", int64_t{0});
    if (layer == i) return std::nullopt;
    if (layer > i) change["layer"] = layer - 1;
  }
  return less;
}

/// Programs that are one change smaller than `json`, the largest changes first.
std::vector<nlohmann::json> smaller(const nlohmann::json& json) {
  std::vector<nlohmann::json> all;
  for (size_t i = 0; json.contains("players") && i < json["players"].size(); ++i) {
    all.push_back(without_player(json, static_cast<int64_t>(i) + 1));
  }
  for (size_t i = 0; json.contains("changes") && i < json["changes"].size(); ++i) {
    all.push_back(json);
    all.back()["changes"].erase(i);
  }
  for (size_t i = 0; json.contains("layers") && i < json["layers"].size(); ++i) {
    if (auto less = without_layer(json, static_cast<int64_t>(i))) all.push_back(std::move(*less));
  }
  const nlohmann::json defaults = full_json(Spec());
  for (const auto& [name, value] : json.items()) {
    if (name == "seed" || name == "number" || name == "oracle" || name == "loop" || is_list(name)) continue;
    if (name == "buffer") {
      for (const auto& [field, own] : value.items()) {
        all.push_back(json);
        all.back()["buffer"].erase(field);
      }
      continue;
    }
    nlohmann::json less = json;
    less.erase(name);
    if (value != defaults[name]) all.push_back(less);
    const bool counts = value.is_number_integer() && value > 1 && name != "schedule_steps";
    if (counts && (name == "steps" || name == "rows" || name == "batch_size" || name == "epochs" || name == "at_step" ||
                   name == "evaluation_rows")) {
      // A batch is divided among the ranks, or into micro-batches.
      const std::string oracle = json.value("oracle", "torch");
      const bool divided =
          name == "batch_size" && (oracle == "ranks" || oracle == "shards" || oracle == "accumulation");
      less[name] = value.get<int64_t>() - (divided ? json.value("parts", int64_t{2}) : 1);
      if (less[name].get<int64_t>() < 1) continue;
      all.push_back(less);
    }
  }
  for (const char* list : {"players", "layers", "changes"}) {
    for (size_t i = 0; json.contains(list) && i < json[list].size(); ++i) {
      for (const auto& [name, value] : json[list][i].items()) {
        if (name == "kind" || name == "out" || name == "shares" || name == "layer" || name == "what") continue;
        nlohmann::json less = json;
        less[list][i].erase(name);
        all.push_back(std::move(less));
      }
    }
  }
  return all;
}

}  // namespace

std::string kind_of_failure(const std::vector<std::string>& lines) {
  if (lines.empty()) return "";
  const std::string& line = lines.front();
  if (!line.starts_with("one failed") && !line.starts_with("crashed") && !line.starts_with("hung") &&
      !line.starts_with("the driver")) {
    // "step3/param/l0.weight: 0.1 apart" is a difference of "param".
    const std::string name = line.substr(0, line.find_first_of(": "));
    const size_t begin = name.find('/') + 1;
    const std::string what = name.substr(begin, name.find('/', begin) - begin);
    return (line.find("missing") != std::string::npos ? "missing " : "differs ") + what;
  }
  std::string kind;
  for (const char c : line.substr(0, 80)) {
    if (!std::isdigit(static_cast<unsigned char>(c))) kind += c;
  }
  return kind;
}

Spec shrink(const Spec& spec, const std::function<std::vector<std::string>(const Spec&)>& check, int64_t runs) {
  Spec best = spec;
  const std::string kind = kind_of_failure(check(spec));
  for (bool again = !kind.empty(); again && runs > 0;) {
    again = false;
    for (const nlohmann::json& less : smaller(to_short_json(best))) {
      if (runs-- <= 0) break;
      const Spec candidate = spec_from_json(less);
      if (kind_of_failure(check(candidate)) != kind) continue;
      best = candidate;
      again = true;
      break;
    }
  }
  return best;
}

}  // namespace trainkit::differential
