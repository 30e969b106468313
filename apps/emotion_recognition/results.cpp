#include "emotion_recognition/results.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "app/results/classification.h"
#include "app/results/result_page.h"
#include "trainkit/app/app.h"
#include "trainkit/core/data_error.h"
#include "trainkit/core/error.h"
#include "trainkit/core/format.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/io/table.h"
#include "trainkit/report/summary.h"

namespace trainkit::emotion {
namespace {

using Json = nlohmann::ordered_json;

/// Predictions of one replica.
class Predictions {
 public:
  void add(const Batch& batch, const at::Tensor& scores) {
    clips_.insert(clips_.end(), batch.row_indices().begin(), batch.row_indices().end());
    probabilities_.push_back(at::softmax(scores, 1, at::kFloat));
  }
  /// Copies the probabilities into the rows of these clips.
  void write(const at::Tensor& all) const {
    if (clips_.empty()) return;
    const c10::InferenceMode inference;
    all.index_copy_(0, at::tensor(clips_, at::kLong), at::cat(probabilities_).cpu());
  }

 private:
  std::vector<int64_t> clips_;
  std::vector<at::Tensor> probabilities_;  // on the device, so that add() does not synchronise
};

std::string predictions_csv(const ClipList& list, const at::Tensor& probabilities) {
  std::string text = "clip,label,predicted";
  for (const std::string& label : list.labels) text += fmt::format(",{}", csv_field("p_" + label));
  text += "\n";
  const at::Tensor predicted = probabilities.argmax(1);
  for (int64_t i = 0; i < list.size(); ++i) {
    const Clip& clip = list.clips[static_cast<size_t>(i)];
    const float* const each = probabilities.const_data_ptr<float>() + i * probabilities.size(1);
    const bool read = std::any_of(each, each + probabilities.size(1), [](float p) { return p != 0; });
    const auto name = [&](int64_t label) { return csv_field(list.labels[static_cast<size_t>(label)]); };
    text +=
        fmt::format("{},{},{}", csv_field(std::filesystem::path(clip.path).lexically_relative(list.folder).string()),
                    name(clip.label), read ? name(predicted[i].item<int64_t>()) : "");
    for (int64_t k = 0; k < probabilities.size(1); ++k) text += read ? fmt::format(",{:.6g}", each[k]) : ",";
    text += "\n";
  }
  return text;
}

std::string percent(double share) { return fmt::format("{:.2f}%", 100 * share); }

/// A test clip with the probability of its true label and of the predicted one.
struct ClipScore {
  int64_t clip = 0, predicted = 0;
  double of_true = 0, of_predicted = 0;
};

/// Returns the clips that were read, in order.
std::vector<ClipScore> score_clips(const ClipList& list, const at::Tensor& probabilities) {
  std::vector<ClipScore> scores;
  for (int64_t i = 0; i < list.size(); ++i) {
    const float* const each = probabilities.const_data_ptr<float>() + i * probabilities.size(1);
    const float* const most = std::max_element(each, each + probabilities.size(1));
    if (*most == 0) continue;  // unreadable
    scores.push_back({i, most - each, each[list.clips[static_cast<size_t>(i)].label], *most});
  }
  return scores;
}

/// Adds a table of the first clips of `scores`.
void add_clips(ResultPage& page, const std::string& caption, const ClipList& list,
               const std::vector<ClipScore>& scores) {
  constexpr size_t kMostClips = 15;
  std::vector<std::vector<Json>> rows;
  for (const ClipScore& score : scores) {
    if (rows.size() == kMostClips) break;
    const Clip& clip = list.clips[static_cast<size_t>(score.clip)];
    rows.push_back({std::filesystem::path(clip.path).lexically_relative(list.folder).string(),
                    list.labels[static_cast<size_t>(clip.label)], list.labels[static_cast<size_t>(score.predicted)],
                    score.of_true, score.of_predicted});
  }
  if (rows.empty()) return;
  page.add_table(caption, {"clip", "true", "predicted", "p(true)", "p(predicted)"}, rows);
}

/// Lists the test clips that are in no score: absent files, and those that this rank could not read.
void add_unreadable(ResultPage& page, const ClipList& list, const TestResult& result) {
  std::map<std::string, std::string> causes;
  for (const auto& samples : {list.absent(), result.bad_samples}) {
    for (const BadSample& sample : samples) causes.emplace(sample.name, sample.cause);
  }
  if (causes.empty()) return;
  std::vector<std::vector<Json>> rows;
  rows.reserve(causes.size());
  for (const auto& [name, cause] : causes) rows.push_back({escape_text(name), escape_text(cause, 400)});
  page.add_table("Could not be read", {"clip", "reason"}, rows);
}

}  // namespace

Metrics TestResult::metrics() const {
  return {{"accuracy", scores.oa},
          {"weighted_f1", scores.weighted_f1},
          {"macro_f1", scores.macro_f1},
          {"majority", majority},
          {"unreadable", static_cast<double>(unreadable)}};
}

absl::Status add_scores(EvaluationCounts& counts, const Placement& placement, Metrics& metrics) {
  metrics["weighted_f1"] = metrics["macro_f1"] = std::numeric_limits<double>::quiet_NaN();
  TRAINKIT_ASSIGN_OR_RETURN(const at::Tensor counted, counts.take(placement.group.get()));
  const ClassificationScores scores = classification_scores(counted);
  metrics["weighted_f1"] = scores.weighted_f1;
  metrics["macro_f1"] = scores.macro_f1;
  return absl::OkStatus();
}

absl::StatusOr<TestResult> test_model(DeviceReplicator& devices, const Session& session,
                                      const std::shared_ptr<const Dataset>& dataset, const RunOptions& run,
                                      const MachineInfo& machine, const Placement& placement, Precision precision) {
  TRAINKIT_ASSIGN_OR_RETURN(const auto loader, evaluation_loader(dataset, run, machine, placement));
  const auto classes = static_cast<int64_t>(session.labels().size());
  EvaluationCounts counts(classes);
  std::vector<Predictions> parts(static_cast<size_t>(devices.replicas()));
  TRAINKIT_RETURN_IF_ERROR(
      for_each_batch(devices, *loader, precision, [&](int64_t replica, torch::nn::Module& model, const Batch& batch) {
        const Batch own = batch.slice(0, batch.size() - batch.padding_rows());
        if (own.size() == 0) return;
        const at::Tensor scores = class_scores(*model.as<EmotionModel>(), own);
        counts.add(own, own["label"], scores);
        parts[static_cast<size_t>(replica)].add(own, scores);
      }));
  TestResult result;
  result.bad_samples = loader->bad_samples();
  TRAINKIT_ASSIGN_OR_RETURN(result.counts, counts.take(placement.group.get()));
  result.probabilities = at::zeros({dataset->size(), classes});
  for (const Predictions& part : parts) part.write(result.probabilities);
  if (placement.group) {
    TRAINKIT_RETURN_IF_ERROR(placement.group->all_reduce(result.probabilities, "gathering the predictions"));
  }
  result.scores = classification_scores(result.counts);
  if (result.scores.rows == 0 && !result.bad_samples.empty()) {
    return data_error("data.empty", {.file = session.test()->list().csv},
                      "none of the test clips can be read: " + result.bad_samples.front().cause);
  }
  const std::vector<int64_t> trained = session.train()->list().counts();
  const auto most = std::max_element(trained.begin(), trained.end()) - trained.begin();
  const auto rows = static_cast<double>(std::max<int64_t>(result.scores.rows, 1));
  result.majority = static_cast<double>(result.scores.classes[static_cast<size_t>(most)].rows) / rows;
  result.unreadable = dataset->size() - result.scores.rows;
  return result;
}

absl::Status write_results(const std::string& folder, const Session& session, const TestResult& result,
                           const BestModel& best) {
  Json json = Json::object();
  for (const auto& [name, value] : result.metrics()) json[name] = value;
  if (best.step() >= 0) json["best"] = {{"step", best.step()}, {"val_weighted_f1", best.value()}};
  json["labels"] = Json::array();
  json["confusion"] = Json::array();
  for (size_t k = 0; k < result.scores.classes.size(); ++k) {
    const ClassScore& score = result.scores.classes[k];
    json["labels"].push_back({{"name", escape_text(session.labels()[k])},
                              {"rows", score.rows},
                              {"precision", score.precision},
                              {"recall", score.recall},
                              {"f1", score.f1}});
    const at::Tensor row = result.counts[static_cast<int64_t>(k)].contiguous();
    json["confusion"].push_back(
        std::vector<int64_t>(row.const_data_ptr<int64_t>(), row.const_data_ptr<int64_t>() + row.numel()));
  }
  TRAINKIT_RETURN_IF_ERROR(write_file_atomically(Fs::posix(), folder + "/scores.json", json.dump(2) + "\n"));
  TRAINKIT_RETURN_IF_ERROR(write_file_atomically(Fs::posix(), folder + "/predictions.csv",
                                                 predictions_csv(session.test()->list(), result.probabilities)));
  return write_file_atomically(Fs::posix(), folder + "/confusion.svg", draw_confusion(result.counts, session.labels()));
}

absl::Status write_result_page(const std::string& folder, const Session& session, const TestResult& result,
                               int64_t tested_step) {
  ResultPage page;
  page.add_tile(percent(result.scores.weighted_f1), "weighted F1", fmt::format("{} test clips", result.scores.rows));
  page.add_tile(percent(result.scores.oa), "accuracy",
                fmt::format("always the most frequent label: {}", percent(result.majority)));
  page.add_section("Emotions in the test clips");
  page.add_note(tested_weights_note(tested_step));
  page.add_classes(session.labels(), result.counts, result.scores, "clips");
  const ClipList& list = session.test()->list();
  std::vector<ClipScore> clips = score_clips(list, result.probabilities);
  page.add_section("Clips");
  std::stable_sort(clips.begin(), clips.end(),
                   [](const ClipScore& a, const ClipScore& b) { return a.of_predicted > b.of_predicted; });
  std::vector<ClipScore> wrong = clips, right = clips;
  const auto is_right = [&](const ClipScore& score) {
    return list.clips[static_cast<size_t>(score.clip)].label == score.predicted;
  };
  std::erase_if(wrong, is_right);
  std::erase_if(right, [&](const ClipScore& score) { return !is_right(score); });
  add_clips(page, "Wrong, the surest first", list, wrong);
  add_clips(page, "Right, the surest first", list, right);
  std::reverse(clips.begin(), clips.end());
  add_clips(page, "The least sure", list, clips);
  add_unreadable(page, list, result);
  return page.write(folder);
}

std::string class_table(const std::vector<std::string>& labels, const TestResult& result) {
  std::string text = "| label | clips | recall | precision | F1 |\n|---|---|---|---|---|\n";
  for (size_t k = 0; k < result.scores.classes.size(); ++k) {
    const ClassScore& score = result.scores.classes[k];
    text += fmt::format("| {} | {} | {} | {} | {} |\n", escape_text(labels[k]), score.rows, percent(score.recall),
                        percent(score.precision), percent(score.f1));
  }
  return text;
}

std::string describe_scores(const Metrics& metrics) {
  std::string text = fmt::format("accuracy {}  weighted F1 {}  macro F1 {}  (always the most frequent label: {})",
                                 percent(metrics.at("accuracy")), percent(metrics.at("weighted_f1")),
                                 percent(metrics.at("macro_f1")), percent(metrics.at("majority")));
  if (const double unreadable = metrics.at("unreadable"); unreadable > 0) {
    text += fmt::format("\n           without {:.0f} clips that could not be read", unreadable);
  }
  return text;
}

std::string describe_folds(const Metrics& metrics, int64_t folds) {
  const auto text = [&](const char* name) {
    return fmt::format("{:.2f} +- {:.2f}%", 100 * metrics.at(name), 100 * metrics.at(std::string(name) + "_std"));
  };
  return fmt::format("{:<10} accuracy {}  weighted F1 {}  macro F1 {}  (mean and standard deviation)",
                     fmt::format("{} folds", folds), text("accuracy"), text("weighted_f1"), text("macro_f1"));
}

std::string describe_result(const TrainerResult& result, const Metrics& scores, int64_t tested_step,
                            const std::string& output_dir) {
  std::string text;
  if (!result.evaluation.empty()) {
    text += fmt::format("validation loss {:.4f}, accuracy {}, weighted F1 {} (best {} at step {} of {})\n",
                        result.evaluation.at("loss"), percent(result.evaluation.at("accuracy")),
                        percent(result.evaluation.at("weighted_f1")), percent(result.best_evaluation.at("weighted_f1")),
                        result.best_step, result.steps);
  }
  if (scores.empty()) return text;
  text += "test       " + describe_scores(scores) + "\n           ";
  text += tested_step >= 0 ? fmt::format("with the weights of step {}, the best in validation\n", tested_step)
                           : std::string("with the last weights\n");
  return text +
         fmt::format("confusion  {0}/results/confusion.svg, each clip {0}/results/predictions.csv\n", output_dir);
}

}  // namespace trainkit::emotion
