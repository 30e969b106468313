#include "gpt2_recommender/results.h"

#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "gpt2_recommender/adapters.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/logging/format.h"
#include "trainkit/train/checkpoint.h"
#include "trainkit/train/run_folder.h"
#include "trainkit/train/weights.h"

namespace trainkit {
namespace {

template <class Number>
Number number_of(const SafetensorsMetadata& metadata, const char* name, Number otherwise) {
  const auto at = metadata.find(name);
  if (at == metadata.end()) return otherwise;
  std::from_chars(at->second.data(), at->second.data() + at->second.size(), otherwise);
  return otherwise;
}

absl::Status move_file(const std::string& from, const std::string& to) {
  std::error_code error;
  std::filesystem::rename(from, to, error);
  if (!error) return absl::OkStatus();
  return to_status({.exit_code = ExitCode::kStorage,
                    .id = "storage.write",
                    .where = to,
                    .problem = "cannot take the place of " + from + ": " + error.message()});
}

std::string line_of(const Metrics& scores) {
  return fmt::format("recall@10 {:.4f}  ndcg@10 {:.4f}  hit@10 {:.4f}  mrr@10 {:.4f}", scores.at("recall@10"),
                     scores.at("ndcg@10"), scores.at("hit@10"), scores.at("mrr@10"));
}

}  // namespace

absl::StatusOr<bool> BestModel::take_over(const std::string& path, int64_t resumed_step) {
  if (!std::filesystem::exists(path)) return false;
  TRAINKIT_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::open(path));
  const int64_t step = number_of<int64_t>(file.metadata(), "step", -1);
  if (step < 0 || step > resumed_step) return false;
  step_ = step;
  value_ = number_of<double>(file.metadata(), "ndcg@10", value_);
  return true;
}

absl::StatusOr<BestModel> BestModel::open(const std::string& output_dir, int64_t resumed_step, bool writes) {
  BestModel best(output_dir, writes);
  if (resumed_step <= 0) return best;
  TRAINKIT_ASSIGN_OR_RETURN(const bool known, best.take_over(best.path_, resumed_step));
  if (known) return best;
  TRAINKIT_ASSIGN_OR_RETURN(const bool known_before, best.take_over(best.before(), resumed_step));
  if (known_before && writes) TRAINKIT_RETURN_IF_ERROR(move_file(best.before(), best.path_));
  return best;
}

absl::Status BestModel::offer(int64_t step, double value, const torch::nn::Module& model) {
  if (!(value > value_)) return absl::OkStatus();
  const int64_t earlier = std::exchange(step_, step);
  value_ = value;
  if (!writes_) return absl::OkStatus();
  const auto saved = resolve_checkpoint("latest", output_dir_);
  if (earlier >= 0 && saved.ok() && earlier <= saved->step) TRAINKIT_RETURN_IF_ERROR(move_file(path_, before()));
  return save_safetensors(Fs::posix(), path_, named_tensors(model),
                          {{"step", fmt::format("{}", step)}, {"ndcg@10", fmt::format("{}", value)}});
}

absl::StatusOr<bool> BestModel::restore(torch::nn::Module& model) const {
  if (step_ < 0) return false;
  TRAINKIT_RETURN_IF_ERROR(load_weights(model, path_).status());
  return true;
}

Metrics TestScores::summary() const {
  Metrics all = model;
  all["mrr"] = model.at("mrr@10");
  for (const auto& [name, value] : popularity) all["popularity." + name] = value;
  all["popularity.mrr"] = popularity.at("mrr@10");
  return all;
}

absl::Status save_best_adapters(const Recommender& model, const Session& session, const RunOptions& run) {
  return save_adapters(model, session.options(), run.output_dir, "best_adapter");
}

absl::StatusOr<TestScores> write_results(const RunOptions& run, const Session& session, const TrainerResult& result,
                                         const BestModel& best, Recommender& model, Logger& logger) {
  TRAINKIT_RETURN_IF_ERROR(save_adapters(model, session.options(), run.output_dir, "adapter"));
  if (result.signal != 0) return TestScores{};
  TRAINKIT_ASSIGN_OR_RETURN(const bool restored, best.restore(model));
  if (restored) TRAINKIT_RETURN_IF_ERROR(save_best_adapters(model, session, run));
  if (session.options().merge_lora) TRAINKIT_RETURN_IF_ERROR(save_merged(model, run.output_dir));
  const TestScores scores = test_model(model, session);
  TRAINKIT_RETURN_IF_ERROR(write_scores(run.output_dir, session, scores, best.step()));
  logger.log_text({.step = result.steps, .tag = "test", .text = score_table(scores)});
  return scores;
}

TestScores test_model(Recommender& model, const Session& session) {
  const RankingVectors vectors = model.vectors();
  return {session.test().score(vectors.users, vectors.items), session.test().score_popularity(),
          session.test().protocol()};
}

absl::Status write_scores(const std::string& output_dir, const Session& session, const TestScores& scores,
                          int64_t best_step) {
  const nlohmann::ordered_json json = {{"protocol", escape_text(scores.protocol, 400)},
                                       {"model", session.options().model},
                                       {"best_step", best_step},
                                       {"test", scores.model},
                                       {"popularity", scores.popularity}};
  return write_file_atomically(Fs::posix(), output_dir + "/scores.json", json.dump(2) + "\n");
}

std::string score_table(const TestScores& scores) {
  std::string text = fmt::format("{}\n\n| score | model | popularity |\n|---|---|---|\n", scores.protocol);
  for (const auto& [name, value] : scores.model) {
    text += fmt::format("| {} | {:.4f} | {:.4f} |\n", name, value, scores.popularity.at(name));
  }
  return text;
}

std::string describe_result(const TrainerResult& result, const RunOptions& run, const TestScores& scores,
                            int64_t best_step) {
  std::string text = describe_time(result);
  if (!result.best_evaluation.empty()) {
    text += fmt::format("\nvalidation ndcg@10 {:.4f} at step {}, the best", result.best_evaluation.at("ndcg@10"),
                        result.best_step);
  }
  if (!scores.model.empty()) {
    text += fmt::format("\ntest       {}  (step {}; {})\npopularity {}", line_of(scores.model), best_step,
                        scores.protocol, line_of(scores.popularity));
  }
  text += fmt::format("\nloss curve {0}/loss.svg\n", run.output_dir);
  return text + describe_next(result, run, "trainkit-gpt2rec");
}

}  // namespace trainkit
