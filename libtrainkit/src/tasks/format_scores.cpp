#include "tasks/format_scores.h"

#include <fmt/format.h>

namespace trainkit::detail {

std::string format_score(const ScoreName& name, const Metrics& scores) {
  const double value = scores.at(name.key);
  const auto deviation = scores.find(name.key + "_std");
  const bool percent = name.kind == ScoreName::Kind::kPercent;
  const auto number = [&](double x) {
    if (name.kind == ScoreName::Kind::kCount) return fmt::format("{:.0f}", x);
    return percent ? fmt::format("{:.2f}", 100 * x) : fmt::format("{:.4f}", x);
  };
  std::string text = number(value);
  if (deviation != scores.end()) text += " +- " + number(deviation->second);
  return text + (percent ? "%" : "");
}

std::string format_scores(const std::vector<ScoreName>& names, const Metrics& scores) {
  std::string text, asides;
  for (const ScoreName& name : names) {
    const auto score = scores.find(name.key);
    if (score == scores.end() || (name.kind == ScoreName::Kind::kCount && score->second == 0)) continue;
    std::string& to = name.aside ? asides : text;
    to += (to.empty() ? "" : name.aside ? ", " : "  ") + name.title + " " + format_score(name, scores);
  }
  return asides.empty() ? text : text + "  (" + asides + ")";
}

std::string score_table(const std::vector<ScoreName>& names, const Metrics& scores) {
  std::string text = "| score | value |\n|---|---|\n";
  for (const ScoreName& name : names) {
    if (scores.contains(name.key)) text += fmt::format("| {} | {} |\n", name.title, format_score(name, scores));
  }
  return text;
}

}  // namespace trainkit::detail
