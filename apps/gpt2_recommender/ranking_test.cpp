#include "gpt2_recommender/ranking_test.h"

#include <ATen/ops/stack.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "gpt2_recommender/models.h"
#include "trainkit/core/error.h"
#include "trainkit/core/format.h"
#include "trainkit/core/fs.h"

namespace trainkit::rec {
namespace {

/// Returns the scores of all list lengths whose names begin with `prefix`, without it.
Metrics scores_of(const Metrics& all, const std::string& prefix) {
  Metrics some;
  for (const auto& [name, value] : all) {
    const std::string own = name.starts_with(prefix) ? name.substr(prefix.size()) : "";
    if (own.find('@') != own.npos && !own.starts_with(kTestPopularity)) some[own] = value;
  }
  return some;
}

/// Returns the names of `all`, the metric that chose the weights first.
std::vector<std::string> names_of(const Metrics& all, const std::string& metric) {
  std::vector<std::string> names = {metric};
  for (const auto& [name, value] : all) {
    if (name != metric) names.push_back(name);
  }
  std::sort(names.begin() + 1, names.end(), natural_less);
  return names;
}

}  // namespace

absl::StatusOr<TestedRows> RankingTest::test(DeviceReplicator& devices, Prefetcher*, int64_t, Precision,
                                             ProcessGroup* group) const {
  if (group && group->rank() != 0) return TestedRows{};
  const RankingVectors vectors = dynamic_cast<Recommender&>(*devices.module()).vectors();
  const at::Tensor model = ranking_.lists(vectors.users, vectors.items), popular = ranking_.popular_lists();
  TestedRows tested{.predictions = at::stack({model, popular}), .scores = ranking_.score(model)};
  tested.scores["mrr"] = tested.scores.at("mrr@10");
  const Metrics baseline = ranking_.score(popular);
  for (const auto& [name, value] : baseline) tested.scores[kTestPopularity + name] = value;
  tested.scores[kTestPopularity + std::string("mrr")] = baseline.at("mrr@10");
  return tested;
}

std::vector<ScoreName> RankingTest::score_names() const {
  std::vector<ScoreName> names = {{metric_, metric_, ScoreName::Kind::kNumber}};
  for (const char* name : {"ndcg@10", "recall@10", "hit@10", "mrr@10"}) {
    if (name != metric_) names.push_back({name, name, ScoreName::Kind::kNumber});
  }
  names.push_back({kTestPopularity + metric_, "popularity " + metric_, ScoreName::Kind::kNumber, /*aside=*/true});
  return names;
}

absl::Status RankingTest::write(const std::string& folder, const TestedRows& tested, ResultPage& page) const {
  const Metrics model = scores_of(tested.scores, ""), popularity = scores_of(tested.scores, kTestPopularity);
  const nlohmann::ordered_json json = {{"protocol", escape_text(protocol(), 400)},
                                       {"model", model_},
                                       {"metric", metric_},
                                       {"best_step", tested.step},
                                       {"test", model},
                                       {"popularity", popularity}};
  page.add_tile(fmt::format("{:.4f}", model.at(metric_)), metric_,
                fmt::format("popularity {:.4f}", popularity.at(metric_)));
  page.add_section("Ranking of the test items");
  page.add_note(fmt::format("{}. {}", protocol(), tested_weights_note(tested.step)));
  std::vector<std::vector<ResultPage::Cell>> rows;
  for (const std::string& name : names_of(model, metric_)) {
    const double ours = model.at(name), theirs = popularity.at(name);
    rows.push_back({name, ours, theirs, theirs > 0 ? fmt::format("{:.2f} x", ours / theirs) : ""});
  }
  page.add_table("Model and popularity", {"score", "model", "popularity", "ratio"}, rows);
  rows.clear();
  const std::vector<ActivityGroup> groups = ranking_.score_by_activity(tested.predictions[0], tested.predictions[1]);
  int64_t users = 0;
  for (const ActivityGroup& group : groups) users += group.users;
  // A group is at the middle of its users, from the least active user to the most active one.
  std::vector<std::pair<double, double>> of_model, of_popularity;
  double before = 0;
  for (const ActivityGroup& group : groups) {
    rows.push_back(
        {group.least == group.most ? fmt::format("{}", group.least) : fmt::format("{} to {}", group.least, group.most),
         group.users, group.model.at(metric_), group.popularity.at(metric_)});
    const double at = (before + 0.5 * static_cast<double>(group.users)) / static_cast<double>(users);
    before += static_cast<double>(group.users);
    of_model.emplace_back(at, group.model.at(metric_));
    of_popularity.emplace_back(at, group.popularity.at(metric_));
  }
  if (!rows.empty()) {
    page.add_chart(metric_ + " by the activity of the users", "users, from the least to the most active",
                   {{"model", of_model}, {"popularity", of_popularity}});
    page.add_table(metric_ + " by the activity of the users", {"known interactions", "users", "model", "popularity"},
                   rows);
  }
  return write_file_atomically(Fs::posix(), folder + "/scores.json", json.dump(2) + "\n");
}

std::string RankingTest::table(const TestedRows& tested) const {
  const Metrics model = scores_of(tested.scores, ""), popularity = scores_of(tested.scores, kTestPopularity);
  std::string text = fmt::format("{}\n\n| score | model | popularity |\n|---|---|---|\n", protocol());
  for (const std::string& name : names_of(model, metric_)) {
    text += fmt::format("| {} | {:.4f} | {:.4f} |\n", name, model.at(name), popularity.at(name));
  }
  return text;
}

std::string compare_with_popularity(const Metrics& best_evaluation, const Metrics& test, const std::string& metric) {
  std::vector<std::string> parts;
  const auto compare = [&](const char* part, const Metrics& scores, const std::string& prefix) {
    const auto ours = scores.find(metric), theirs = scores.find(prefix + metric);
    if (ours == scores.end() || theirs == scores.end() || ours->second >= theirs->second) return;
    parts.push_back(fmt::format("{:.4f} against {:.4f} in {}", ours->second, theirs->second, part));
  };
  compare("validation", best_evaluation, kPopularity);
  compare("the test", test, kTestPopularity);
  if (parts.empty()) return {};
  return fmt::format(
      "{} of the model is lower than that of recommending the most popular items to everyone: {}; try another "
      "--embedding_decay, --lr or --early_stopping, or collect more interactions",
      metric, fmt::join(parts, ", "));
}

}  // namespace trainkit::rec
