#pragma once
/// Scores as text.

#include <string>
#include <vector>

#include "trainkit/tasks/task.h"

namespace trainkit::detail {

/// Formats a score: "61.20%"; with `<key>_std` in `scores`, "61.20 +- 1.30%".
std::string format_score(const ScoreName& name, const Metrics& scores);
/// Formats scores in a line: "accuracy 61.20%  weighted F1 59.91%  (majority 48.12%)". Leaves out those that are not in
/// `scores`.
std::string format_scores(const std::vector<ScoreName>& names, const Metrics& scores);
/// Returns a Markdown table of those scores.
std::string score_table(const std::vector<ScoreName>& names, const Metrics& scores);

}  // namespace trainkit::detail
