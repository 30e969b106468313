#include "shrink.h"

#include <cctype>

namespace trainkit::differential {
namespace {

/// Programs that are one change smaller than `json`, the largest changes first.
std::vector<nlohmann::json> smaller(const nlohmann::json& json) {
  std::vector<nlohmann::json> all;
  for (size_t i = 0; json.contains("layers") && i < json["layers"].size(); ++i) {
    nlohmann::json less = json;
    less["layers"].erase(i);
    bool valid = true;
    for (nlohmann::json& layer : less["layers"]) {
      const auto shares = layer.value("shares", int64_t{0});
      if (shares == static_cast<int64_t>(i) + 1) valid = false;
      if (shares > static_cast<int64_t>(i) + 1) layer["shares"] = shares - 1;
    }
    if (valid) all.push_back(std::move(less));
  }
  const nlohmann::json defaults = full_json(Spec());
  for (const auto& [name, value] : json.items()) {
    if (name == "seed" || name == "number" || name == "oracle" || name == "loop" || name == "layers") continue;
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
  for (size_t i = 0; json.contains("layers") && i < json["layers"].size(); ++i) {
    for (const auto& [name, value] : json["layers"][i].items()) {
      if (name == "kind" || name == "out" || name == "shares") continue;
      nlohmann::json less = json;
      less["layers"][i].erase(name);
      all.push_back(std::move(less));
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
