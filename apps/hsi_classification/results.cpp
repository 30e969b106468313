#include "hsi_classification/results.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "app/results/classification.h"
#include "app/results/result_page.h"
#include "hsi_classification/maps.h"
#include "trainkit/app/app.h"
#include "trainkit/arrays/array_file.h"
#include "trainkit/arrays/mat.h"
#include "trainkit/core/error.h"
#include "trainkit/core/format.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/report/summary.h"

namespace trainkit::hsi {
namespace {

using Json = nlohmann::ordered_json;

/// Results of one replica, on its device.
struct Part {
  ConfusionMatrix confusion;
  at::Tensor map;  // (pixels) int64
};

std::string percent(double share) { return fmt::format("{:.2f}%", 100 * share); }

/// Converts `map` (height, width) of classes 0..C to the label values of the scene's file.
at::Tensor file_values(const at::Tensor& map, const Scene& scene) {
  std::vector<int64_t> values = {scene.background.value_or(-1)};
  values.insert(values.end(), scene.label_values.begin(), scene.label_values.end());
  return at::tensor(values, at::kLong).index_select(0, map.flatten()).view(map.sizes());
}

Json json_of(const Scene& scene, const TestResult& result) {
  Json json = {{"oa", result.scores.oa},    {"aa", result.scores.aa},     {"kappa", result.scores.kappa},
               {"leak", result.leak},       {"rows", result.scores.rows}, {"classes", Json::array()},
               {"confusion", Json::array()}};
  for (size_t k = 0; k < result.scores.classes.size(); ++k) {
    const ClassScore& score = result.scores.classes[k];
    json["classes"].push_back({{"name", escape_text(scene.class_names[k])},
                               {"label", scene.label_values[k]},
                               {"rows", score.rows},
                               {"precision", score.precision},
                               {"recall", score.recall},
                               {"f1", score.f1}});
    const at::Tensor row = result.counts[static_cast<int64_t>(k)].contiguous();
    json["confusion"].push_back(
        std::vector<int64_t>(row.const_data_ptr<int64_t>(), row.const_data_ptr<int64_t>() + row.numel()));
  }
  return json;
}

}  // namespace

Metrics class_metrics(const Scene& scene, const ClassificationScores& scores) {
  Metrics metrics = {{"aa", scores.aa}};
  for (size_t k = 0; k < scores.classes.size(); ++k) {
    if (scores.classes[k].rows > 0) metrics["recall." + scene.class_names[k]] = scores.classes[k].recall;
  }
  return metrics;
}

Metrics TestResult::metrics(const Scene& scene) const {
  Metrics metrics = class_metrics(scene, scores);
  metrics.insert({{"oa", scores.oa}, {"kappa", scores.kappa}, {"leak", leak}});
  return metrics;
}

absl::StatusOr<TestResult> test_model(DeviceReplicator& devices, const Session& session, const Split& split,
                                      const RunOptions& run, const MachineInfo& machine, const Placement& placement,
                                      Precision precision, bool whole_scene) {
  const Scene& scene = session.scene();
  const int64_t pixels = scene.height() * scene.width();
  // Pixels without a score have label -1.
  at::Tensor labels = at::full({pixels}, -1, at::kLong);
  labels.index_copy_(0, split.test, session.labels_of(split.test));
  const at::Tensor asked = whole_scene ? at::arange(pixels, at::kLong) : split.test;
  const auto rows = session.feed().dataset(asked, labels.index_select(0, asked), /*augment=*/false);
  TRAINKIT_ASSIGN_OR_RETURN(const auto loader, evaluation_loader(rows, run, machine, placement));

  std::vector<Part> parts;
  for (int64_t i = 0; i < devices.replicas(); ++i) {
    const at::Device device = devices.device(i);
    parts.push_back({ConfusionMatrix(scene.num_classes(), device),
                     at::zeros({pixels}, at::TensorOptions(at::kLong).device(device))});
  }
  TRAINKIT_RETURN_IF_ERROR(
      for_each_batch(devices, *loader, precision, [&](int64_t replica, torch::nn::Module& model, const Batch& batch) {
        // Skip padding rows, which make ranks equal in length: each pixel counts once.
        const Batch own = batch.slice(0, batch.size() - batch.padding_rows());
        if (own.size() == 0) return;
        Part& part = parts[static_cast<size_t>(replica)];
        const at::Tensor classes = model.as<HsiModel>()->forward(session.feed().patches(own)).argmax(1);
        part.confusion.add(own["y"], classes);
        part.map.index_copy_(0, own["pixel"], classes + 1);
      }));
  for (size_t i = 1; i < parts.size(); ++i) {
    parts[0].confusion.add(parts[i].confusion);
    parts[0].map = at::maximum(parts[0].map, parts[i].map.to(parts[0].map.device()));
  }
  if (ProcessGroup* group = placement.group.get()) {
    TRAINKIT_RETURN_IF_ERROR(parts[0].confusion.add_other_ranks(*group));
    TRAINKIT_RETURN_IF_ERROR(group->all_reduce_max(parts[0].map, "all_reduce(classification map)"));
  }
  TestResult result;
  result.counts = parts[0].confusion.counts();
  result.scores = classification_scores(result.counts);
  result.leak = session.leak(split);
  result.map = parts[0].map.to(at::kCPU).view({scene.height(), scene.width()});
  return result;
}

absl::Status write_results(const std::string& folder, const Session& session, const Split& split,
                           const TestResult& result, bool maps) {
  const Scene& scene = session.scene();
  TRAINKIT_RETURN_IF_ERROR(
      write_file_atomically(Fs::posix(), folder + "/scores.json", json_of(scene, result).dump(2) + "\n"));
  TRAINKIT_RETURN_IF_ERROR(
      write_file_atomically(Fs::posix(), folder + "/confusion.svg", draw_confusion(result.counts, scene.class_names)));
  if (!maps) return absl::OkStatus();
  TRAINKIT_RETURN_IF_ERROR(write_png(folder + "/classification.png", draw_map(enlarge(result.map), scene)));
  TRAINKIT_RETURN_IF_ERROR(write_png(folder + "/ground_truth.png", draw_map(enlarge(scene.labels), scene)));
  TRAINKIT_RETURN_IF_ERROR(write_png(folder + "/errors.png", draw_errors(result.map, scene.labels)));
  TRAINKIT_RETURN_IF_ERROR(write_png(folder + "/report_classification.png", draw_plain_map(result.map, scene)));
  TRAINKIT_RETURN_IF_ERROR(write_png(folder + "/report_ground_truth.png", draw_plain_map(scene.labels, scene)));
  TRAINKIT_RETURN_IF_ERROR(write_png(folder + "/report_errors.png", draw_plain_errors(result.map, scene.labels)));
  at::Tensor parts = at::zeros({scene.height() * scene.width()}, at::kByte);
  parts.index_fill_(0, split.train, 1).index_fill_(0, split.validation, 2).index_fill_(0, split.test, 3);
  const std::vector<std::pair<std::string, at::Tensor>> variables = {
      {"classification", file_values(result.map, scene)},
      {"ground_truth", file_values(scene.labels, scene)},
      {"split", parts.view({scene.height(), scene.width()})}};
  return write_mat(folder + "/maps.mat", variables);
}

absl::Status write_result_page(const std::string& folder, const Session& session, const Split& split,
                               const TestResult& result, bool maps, int64_t tested_step) {
  const Scene& scene = session.scene();
  ResultPage page;
  const std::string pixels = fmt::format("{} test pixels", result.scores.rows);
  page.add_tile(percent(result.scores.oa), "overall accuracy", pixels);
  page.add_tile(percent(result.scores.aa), "average accuracy", "mean recall of the classes");
  page.add_tile(fmt::format("{:.4f}", result.scores.kappa), "kappa",
                fmt::format("leak {}: test pixels in a training patch", percent(result.leak)));
  page.add_section("Classification of " + scene.name);
  page.add_note(fmt::format("{} training, {} validation and {} test pixels. {}", split.train.numel(),
                            split.validation.numel(), split.test.numel(), tested_weights_note(tested_step)));
  if (maps) {
    page.add_picture("report_classification.png", "Classification", "Map of the predicted class of each pixel");
    page.add_picture("report_ground_truth.png", "Ground truth", "Map of the true class of each labelled pixel");
    page.add_picture("report_errors.png", "Errors: wrong in red, correct in grey",
                     "Map of the pixels that were classified wrongly, in red");
    std::vector<std::pair<std::string, std::string>> legend;
    for (size_t k = 0; k < scene.class_names.size(); ++k) {
      const Colour colour = class_colour(static_cast<int64_t>(k) + 1);
      legend.emplace_back(scene.class_names[k],
                          fmt::format("#{:02x}{:02x}{:02x}", colour.red, colour.green, colour.blue));
    }
    if (scene.background) legend.emplace_back("unlabelled", "#000000");
    page.add_legend(legend);
  }
  page.add_classes(scene.class_names, result.counts, result.scores, "pixels");
  return page.write(folder);
}

std::string describe_scores(const Metrics& metrics) {
  const auto text = [&](const char* name, bool as_percent) {
    const double value = metrics.at(name);
    const auto deviation = metrics.find(std::string(name) + "_std");
    std::string shown = as_percent ? fmt::format("{:.2f}", 100 * value) : fmt::format("{:.4f}", value);
    if (deviation != metrics.end()) {
      shown += as_percent ? fmt::format(" +- {:.2f}", 100 * deviation->second)
                          : fmt::format(" +- {:.4f}", deviation->second);
    }
    return shown + (as_percent ? "%" : "");
  };
  return fmt::format("oa {}  aa {}  kappa {}  (leak {})", text("oa", true), text("aa", true), text("kappa", false),
                     text("leak", true));
}

std::string class_table(const Scene& scene, const TestResult& result) {
  std::string text = "| class | pixels | recall | precision | F1 |\n|---|---|---|---|---|\n";
  for (size_t k = 0; k < result.scores.classes.size(); ++k) {
    const ClassScore& score = result.scores.classes[k];
    text += fmt::format("| {} | {} | {} | {} | {} |\n", escape_text(scene.class_names[k]), score.rows,
                        percent(score.recall), percent(score.precision), percent(score.f1));
  }
  return text;
}

std::string describe_result(const TrainerResult& result, const Metrics& scores, int64_t tested_step) {
  std::string text;
  if (!result.evaluation.empty()) {
    text += fmt::format("validation loss {:.4f}, oa {}, aa {} (best loss {:.4f} at step {})\n",
                        result.evaluation.at("loss"), percent(result.evaluation.at("oa")),
                        percent(result.evaluation.at("aa")), result.best_evaluation.at("loss"), result.best_step);
  }
  if (!scores.empty()) text += "test       " + describe_scores(scores) + "\n";
  if (!scores.empty() && tested_step >= 0) {
    text += fmt::format("           with the weights of step {}, the best in validation\n", tested_step);
  }
  return text;
}

}  // namespace trainkit::hsi
