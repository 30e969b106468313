#include "gpt2_recommender/results.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "gpt2_recommender/adapters.h"
#include "trainkit/app/app.h"
#include "trainkit/core/format.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/report/result_page.h"

namespace trainkit::rec {
namespace {

/// Returns the names of `all`, the metric that chose the weights first.
std::vector<std::string> names_of(const Metrics& all, const std::string& metric) {
  std::vector<std::string> names = {metric};
  for (const auto& [name, value] : all) {
    if (name != metric) names.push_back(name);
  }
  std::sort(names.begin() + 1, names.end(), natural_less);
  return names;
}

std::string line_of(const Metrics& scores, const std::string& metric) {
  std::string text = fmt::format("{} {:.4f}", metric, scores.at(metric));
  for (const char* name : {"ndcg@10", "recall@10", "hit@10", "mrr@10"}) {
    if (name != metric) text += fmt::format("  {} {:.4f}", name, scores.at(name));
  }
  return text;
}

}  // namespace

Metrics TestScores::summary() const {
  Metrics all = model;
  all["mrr"] = model.at("mrr@10");
  for (const auto& [name, value] : popularity) all["popularity." + name] = value;
  all["popularity.mrr"] = popularity.at("mrr@10");
  return all;
}

absl::Status save_best_adapters(const Recommender& model, const Session& session, const RunOptions& run) {
  TRAINKIT_ASSIGN_OR_RETURN(const std::string folder, results_dir(run));
  return save_adapters(model, session.options(), folder, "best_adapter");
}

absl::StatusOr<TestScores> write_results(const RunOptions& run, const Session& session, const TrainerResult& result,
                                         const BestModel& best, Recommender& model, Logger& logger) {
  TRAINKIT_ASSIGN_OR_RETURN(const std::string folder, results_dir(run));
  TRAINKIT_RETURN_IF_ERROR(save_adapters(model, session.options(), folder, "adapter"));
  if (result.signal != 0) return TestScores{};
  TRAINKIT_ASSIGN_OR_RETURN(const bool restored, best.restore(model));
  if (restored) TRAINKIT_RETURN_IF_ERROR(save_best_adapters(model, session, run));
  if (session.options().merge_lora) TRAINKIT_RETURN_IF_ERROR(save_merged(model, folder));
  const TestScores scores = test_model(model, session);
  TRAINKIT_RETURN_IF_ERROR(write_scores(folder, session, scores, best.step()));
  TRAINKIT_RETURN_IF_ERROR(write_result_page(folder, scores, best.step()));
  log_test(logger, result, scores.summary(), score_table(scores));
  return scores;
}

TestScores test_model(Recommender& model, const Session& session) {
  const RankingVectors vectors = model.vectors();
  return {session.test().score(vectors.users, vectors.items), session.test().score_popularity(),
          session.test().protocol(), session.options().metric,
          session.test().score_by_activity(vectors.users, vectors.items)};
}

absl::Status write_scores(const std::string& folder, const Session& session, const TestScores& scores,
                          int64_t best_step) {
  const nlohmann::ordered_json json = {{"protocol", escape_text(scores.protocol, 400)},
                                       {"model", session.options().model},
                                       {"metric", scores.metric},
                                       {"best_step", best_step},
                                       {"test", scores.model},
                                       {"popularity", scores.popularity}};
  return write_file_atomically(Fs::posix(), folder + "/scores.json", json.dump(2) + "\n");
}

absl::Status write_result_page(const std::string& folder, const TestScores& scores, int64_t best_step) {
  ResultPage page;
  const std::string& metric = scores.metric;
  page.add_tile(fmt::format("{:.4f}", scores.model.at(metric)), metric,
                fmt::format("popularity {:.4f}", scores.popularity.at(metric)));
  page.add_section("Ranking of the test items");
  page.add_note(fmt::format("{}. {}", scores.protocol, tested_weights_note(best_step)));
  std::vector<std::vector<ResultPage::Cell>> rows;
  for (const std::string& name : names_of(scores.model, metric)) {
    const double model = scores.model.at(name), popularity = scores.popularity.at(name);
    rows.push_back({name, model, popularity, popularity > 0 ? fmt::format("{:.2f} x", model / popularity) : ""});
  }
  page.add_table("Model and popularity", {"score", "model", "popularity", "ratio"}, rows);
  rows.clear();
  int64_t users = 0;
  for (const ActivityGroup& group : scores.by_activity) users += group.users;
  // A group is at the middle of its users, from the least active user to the most active one.
  std::vector<std::pair<double, double>> of_model, of_popularity;
  double before = 0;
  for (const ActivityGroup& group : scores.by_activity) {
    rows.push_back(
        {group.least == group.most ? fmt::format("{}", group.least) : fmt::format("{} to {}", group.least, group.most),
         group.users, group.model.at(metric), group.popularity.at(metric)});
    const double at = (before + 0.5 * static_cast<double>(group.users)) / static_cast<double>(users);
    before += static_cast<double>(group.users);
    of_model.emplace_back(at, group.model.at(metric));
    of_popularity.emplace_back(at, group.popularity.at(metric));
  }
  if (!rows.empty()) {
    page.add_chart(metric + " by the activity of the users", "users, from the least to the most active",
                   {{"model", of_model}, {"popularity", of_popularity}});
    page.add_table(metric + " by the activity of the users", {"known interactions", "users", "model", "popularity"},
                   rows);
  }
  return page.write(folder);
}

std::string score_table(const TestScores& scores) {
  std::string text = fmt::format("{}\n\n| score | model | popularity |\n|---|---|---|\n", scores.protocol);
  for (const std::string& name : names_of(scores.model, scores.metric)) {
    text += fmt::format("| {} | {:.4f} | {:.4f} |\n", name, scores.model.at(name), scores.popularity.at(name));
  }
  return text;
}

std::string compare_with_popularity(const Metrics& best_evaluation, const TestScores& scores,
                                    const std::string& metric) {
  std::vector<std::string> parts;
  const auto compare = [&](const char* part, const Metrics& model, const Metrics& popularity, const std::string& name) {
    const auto ours = model.find(metric), theirs = popularity.find(name);
    if (ours == model.end() || theirs == popularity.end() || ours->second >= theirs->second) return;
    parts.push_back(fmt::format("{:.4f} against {:.4f} in {}", ours->second, theirs->second, part));
  };
  compare("validation", best_evaluation, best_evaluation, kPopularity + metric);
  compare("the test", scores.model, scores.popularity, metric);
  if (parts.empty()) return {};
  return fmt::format(
      "{} of the model is lower than that of recommending the most popular items to everyone: {}; try another "
      "--embedding_decay, --lr or --early_stopping, or collect more interactions",
      metric, fmt::join(parts, ", "));
}

std::string describe_result(const TrainerResult& result, const TestScores& scores, const std::string& metric,
                            int64_t best_step) {
  std::string text;
  if (!result.best_evaluation.empty()) {
    text += fmt::format("validation {} {:.4f} at step {} (best)\n", metric, result.best_evaluation.at(metric),
                        result.best_step);
  }
  if (!scores.model.empty()) {
    text += fmt::format("test       {}  (step {}; {})\npopularity {}\n", line_of(scores.model, metric),
                        best_step >= 0 ? best_step : result.steps, scores.protocol, line_of(scores.popularity, metric));
  }
  return text;
}

}  // namespace trainkit::rec
