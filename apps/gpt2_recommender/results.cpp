#include "gpt2_recommender/results.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "gpt2_recommender/adapters.h"
#include "trainkit/app/app.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/logging/format.h"

namespace trainkit::rec {
namespace {

std::string line_of(const Metrics& scores) {
  return fmt::format("recall@10 {:.4f}  ndcg@10 {:.4f}  hit@10 {:.4f}  mrr@10 {:.4f}", scores.at("recall@10"),
                     scores.at("ndcg@10"), scores.at("hit@10"), scores.at("mrr@10"));
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
  log_test(logger, result, scores.summary(), score_table(scores));
  return scores;
}

TestScores test_model(Recommender& model, const Session& session) {
  const RankingVectors vectors = model.vectors();
  return {session.test().score(vectors.users, vectors.items), session.test().score_popularity(),
          session.test().protocol()};
}

absl::Status write_scores(const std::string& folder, const Session& session, const TestScores& scores,
                          int64_t best_step) {
  const nlohmann::ordered_json json = {{"protocol", escape_text(scores.protocol, 400)},
                                       {"model", session.options().model},
                                       {"best_step", best_step},
                                       {"test", scores.model},
                                       {"popularity", scores.popularity}};
  return write_file_atomically(Fs::posix(), folder + "/scores.json", json.dump(2) + "\n");
}

std::string score_table(const TestScores& scores) {
  std::string text = fmt::format("{}\n\n| score | model | popularity |\n|---|---|---|\n", scores.protocol);
  for (const auto& [name, value] : scores.model) {
    text += fmt::format("| {} | {:.4f} | {:.4f} |\n", name, value, scores.popularity.at(name));
  }
  return text;
}

std::string describe_result(const TrainerResult& result, const TestScores& scores, int64_t best_step) {
  std::string text;
  if (!result.best_evaluation.empty()) {
    text += fmt::format("validation ndcg@10 {:.4f} at step {} (best)\n", result.best_evaluation.at("ndcg@10"),
                        result.best_step);
  }
  if (!scores.model.empty()) {
    text += fmt::format("test       {}  (step {}; {})\npopularity {}\n", line_of(scores.model), best_step,
                        scores.protocol, line_of(scores.popularity));
  }
  return text;
}

}  // namespace trainkit::rec
