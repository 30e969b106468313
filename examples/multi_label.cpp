// A kind of task of its own: several labels per row, with scores, a table, a report and `predict`.
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <torch/nn/modules/linear.h>

#include "trainkit/app/app.h"
#include "trainkit/arrays/array_file.h"
#include "trainkit/core/status.h"
#include "trainkit/data/tensor_dataset.h"

using namespace trainkit;

/// Per label: rows that have it and were found, rows found, rows that have it.
struct LabelScore final : Score {
  explicit LabelScore(int64_t labels, at::Device device = at::kCPU)
      : counts(at::zeros({3, labels}, at::TensorOptions(at::kLong).device(device))) {}
  std::unique_ptr<Score> empty_on(at::Device device) const override {
    return std::make_unique<LabelScore>(counts.size(1), device);
  }
  void update(const at::Tensor& outputs, const Batch& rows) override {
    const at::Tensor found = outputs.gt(0), has = rows["y"].gt(0);
    counts.add_(at::stack({found.logical_and(has).sum(0), found.sum(0), has.sum(0)}));
  }
  std::vector<at::Tensor> sums() const override { return {counts}; }
  at::Tensor f1() const {
    const at::Tensor c = counts.to(at::kCPU, at::kDouble);
    return 2 * c[0] / (c[1] + c[2]).clamp_min(1);
  }
  Metrics result() const override { return {{"macro_f1", f1().mean().item<double>()}}; }
  at::Tensor counts;
};

struct MultiLabel final : Task {
  MultiLabel(ModelOutputs outputs, int64_t labels) : Task(std::move(outputs), std::make_shared<LabelScore>(labels)) {}
  LossOutput loss(const at::Tensor& outputs, const Batch& batch, bool) const override {
    return at::binary_cross_entropy_with_logits(outputs, batch["y"].to(outputs.dtype()));
  }
  at::Tensor prediction(const at::Tensor& outputs) const override { return outputs.sigmoid().to(at::kFloat); }
  at::Tensor truth(const Batch& rows) const override { return rows["y"]; }
  std::vector<ScoreName> score_names() const override { return {{"macro_f1", "macro F1"}}; }
  std::string monitor() const override { return "macro_f1"; }
  std::vector<std::string> prediction_columns() const override { return {"labels"}; }
  std::vector<std::string> prediction_fields(const at::Tensor& predictions, int64_t row) const override {
    std::string labels;
    for (int64_t k = 0; k < predictions.size(1); ++k) {
      if (predictions[row][k].item<float>() > 0.5) labels += (labels.empty() ? "" : " ") + std::to_string(k);
    }
    return {labels};
  }
  absl::Status write(const std::string&, const TestedRows& tested, ResultPage& page) const override {
    add_score_tiles(*this, tested, tested.size(), page);
    page.add_section("Labels of the test rows");
    page.add_note(table(tested));
    return absl::OkStatus();
  }
  std::string table(const TestedRows& tested) const override {
    const at::Tensor f1 = dynamic_cast<const LabelScore&>(*tested.score).f1();
    std::string text = "| label | F1 |\n|---|---|\n";
    for (int64_t k = 0; k < f1.size(0); ++k) text += fmt::format("| {} | {:.4f} |\n", k, f1[k].item<double>());
    return text;
  }
};

struct MultiLabelApp final : App {
  AppInfo info() const override {
    return {.name = "multi_label", .description = "Learns the labels y.npy (N, L) of the rows x.npy (N, F)."};
  }
  absl::StatusOr<TrainingTask> open(RunContext& context) override {
    TRAINKIT_ASSIGN_OR_RETURN(const at::Tensor x, read_npy(context.run.data_dir + "/x.npy"));
    TRAINKIT_ASSIGN_OR_RETURN(const at::Tensor y, read_npy(context.run.data_dir + "/y.npy"));
    const auto part = [&](int64_t begin, int64_t end) {
      return std::make_shared<TensorDataset>(
          TensorDataset({{"x", x.slice(0, begin, end)}, {"y", y.slice(0, begin, end)}}));
    };
    const int64_t training = x.size(0) * 4 / 5;
    return TrainingTask{.recipe = {.make_model = [=] { return torch::nn::Linear(x.size(1), y.size(1)).ptr(); }},
                        .training_set = part(0, training),
                        .validation_set = part(training, x.size(0)),
                        .task = task(y.size(1)),
                        .test_set = part(training, x.size(0)),
                        .keep_best = true};
  }
  std::vector<AppCommand> commands() override { return {predict_command(*this, to_predict, "X.npy")}; }
  static absl::StatusOr<RowsToPredict> to_predict(TrainedRun& run) {
    TRAINKIT_ASSIGN_OR_RETURN(const at::Tensor x, read_npy(run.words.front()));
    TRAINKIT_ASSIGN_OR_RETURN(const at::Tensor y, read_npy(run.options.data_dir + "/y.npy"));
    return RowsToPredict{[=] { return torch::nn::Linear(x.size(1), y.size(1)).ptr(); }, task(y.size(1)),
                         std::make_shared<TensorDataset>(TensorDataset({{"x", x}}))};
  }
  static std::shared_ptr<Task> task(int64_t labels) {
    const auto outputs = [](torch::nn::Linear& net, const Batch& batch) { return net->forward(batch["x"]); };
    return std::make_shared<MultiLabel>(any_model(outputs), labels);
  }
};

int main(int argc, char** argv) {
  MultiLabelApp app;
  return run_app(argc, argv, app);
}
