#include "emotion_recognition/results.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/logging/format.h"
#include "trainkit/logging/plot.h"
#include "trainkit/train/run_folder.h"

namespace trainkit {
namespace {

using Json = nlohmann::ordered_json;

std::string percent(double share) { return fmt::format("{:.2f}%", 100 * share); }

}  // namespace

double TestResult::weighted_f1() const {
  double sum = 0;
  for (const ClassScore& score : scores.classes) sum += score.f1 * static_cast<double>(score.rows);
  return scores.rows > 0 ? sum / static_cast<double>(scores.rows) : 0;
}

double TestResult::macro_f1() const {
  const at::Tensor said = counts.sum(0);
  double sum = 0;
  int64_t labels = 0;
  for (size_t k = 0; k < scores.classes.size(); ++k) {
    if (scores.classes[k].rows == 0 && said[static_cast<int64_t>(k)].item<int64_t>() == 0) continue;
    sum += scores.classes[k].f1;
    ++labels;
  }
  return labels > 0 ? sum / static_cast<double>(labels) : 0;
}

Metrics TestResult::metrics() const {
  return {{"accuracy", scores.oa},
          {"weighted_f1", weighted_f1()},
          {"macro_f1", macro_f1()},
          {"majority", majority},
          {"unreadable", static_cast<double>(unreadable)}};
}

absl::StatusOr<TestResult> test_model(DeviceReplicator& devices, const Session& session,
                                      const std::shared_ptr<const Dataset>& dataset, const RunOptions& run,
                                      const Machine& machine, const Placement& placement, Precision precision) {
  RunOptions reading = run;
  if (reading.on_error == "replace") reading.on_error = "skip";  // another clip's score is not this one's
  TRAINKIT_ASSIGN_OR_RETURN(const auto loader, evaluation_loader(dataset, reading, machine, placement));
  const auto classes = static_cast<int64_t>(session.labels().size());
  std::vector<ConfusionMatrix> parts;
  for (int64_t i = 0; i < devices.replicas(); ++i) parts.emplace_back(classes, devices.device(i));
  TRAINKIT_RETURN_IF_ERROR(
      for_each_batch(devices, *loader, precision, [&](int64_t replica, torch::nn::Module& model, const Batch& batch) {
        const Batch own = batch.slice(0, batch.size() - batch.padding_rows());
        if (own.size() == 0) return;
        const at::Tensor scores = class_scores(*model.as<EmotionModel>(), own);
        parts[static_cast<size_t>(replica)].add(own["label"], scores.argmax(1));
      }));
  for (size_t i = 1; i < parts.size(); ++i) parts[0].add(parts[i]);
  if (ProcessGroup* group = placement.group.get()) TRAINKIT_RETURN_IF_ERROR(parts[0].add_other_ranks(*group));
  TestResult result;
  result.counts = parts[0].counts();
  result.scores = score(result.counts);
  const std::vector<int64_t> trained = session.train()->list().counts();
  const auto most = std::max_element(trained.begin(), trained.end()) - trained.begin();
  const auto rows = static_cast<double>(std::max<int64_t>(result.scores.rows, 1));
  result.majority = static_cast<double>(result.scores.classes[static_cast<size_t>(most)].rows) / rows;
  result.unreadable = dataset->size() - result.scores.rows;
  return result;
}

absl::Status write_results(const std::string& output_dir, const Session& session, const TestResult& result) {
  Json json = Json::object();
  for (const auto& [name, value] : result.metrics()) json[name] = value;
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
  TRAINKIT_RETURN_IF_ERROR(write_file_atomically(Fs::posix(), output_dir + "/scores.json", json.dump(2) + "\n"));
  return write_file_atomically(Fs::posix(), output_dir + "/confusion.svg",
                               draw_confusion(result.counts, session.labels()));
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

std::string draw_confusion(const at::Tensor& counts, const std::vector<std::string>& labels) {
  constexpr int kCell = 56, kLeft = 120, kTop = 90;
  const int classes = static_cast<int>(labels.size()), side = kCell * classes;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
      "<text x=\"{2}\" y=\"20\" text-anchor=\"middle\">predicted</text>\n"
      "<text x=\"8\" y=\"20\">true</text>\n",
      kLeft + side + 20, kTop + side + 20, kLeft + side / 2);
  for (int k = 0; k < classes; ++k) {
    const std::string name = svg_text(labels[static_cast<size_t>(k)], 120);
    svg +=
        fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n", kLeft - 8, kTop + k * kCell + 33, name);
    svg += fmt::format("<text transform=\"translate({},{}) rotate(-40)\">{}</text>\n", kLeft + k * kCell + 24, kTop - 8,
                       name);
    const at::Tensor row = counts[k];
    const auto total = static_cast<double>(std::max<int64_t>(row.sum().item<int64_t>(), 1));
    for (int j = 0; j < classes; ++j) {
      const auto count = row[j].item<int64_t>();
      const double share = static_cast<double>(count) / total;
      svg += fmt::format(
          "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"#1f5fa8\" fill-opacity=\"{:.3f}\" "
          "stroke=\"#ccc\"><title>{} of {:.0f}</title></rect>\n",
          kLeft + j * kCell, kTop + k * kCell, kCell, kCell, share, count, total);
      svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" fill=\"{}\">{}</text>\n",
                         kLeft + j * kCell + kCell / 2, kTop + k * kCell + 33, share > 0.5 ? "white" : "black", count);
    }
  }
  return svg + "</svg>\n";
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

std::string describe_result(const TrainerResult& result, const RunOptions& run, const Metrics& scores) {
  std::string text = describe_time(result);
  if (!result.evaluation.empty()) {
    text +=
        fmt::format("\nvalidation loss {:.4f}, accuracy {} (best loss {:.4f} at step {})", result.evaluation.at("loss"),
                    percent(result.evaluation.at("accuracy")), result.best_evaluation.at("loss"), result.best_step);
  }
  if (!scores.empty()) text += "\ntest       " + describe_scores(scores);
  text += fmt::format("\nloss curve {0}/loss.svg, confusion matrix {0}/confusion.svg\n", run.output_dir);
  return text + describe_next(result, run, "trainkit-emotion");
}

}  // namespace trainkit
