#include "trainkit/tasks/regression.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/huber_loss.h>
#include <ATen/ops/mse_loss.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "tasks/format_scores.h"
#include "tasks/regression_score.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/io/table.h"

namespace trainkit {
namespace {

/// Returns (B) float64 in the target's units.
at::Tensor in_units(const at::Tensor& outputs, const RegressionOptions& options) {
  return outputs.detach().reshape({outputs.size(0)}).to(at::kDouble) * options.deviation + options.mean;
}

class Regression final : public Task {
 public:
  Regression(ModelOutputs outputs, RegressionOptions options)
      : Task(std::move(outputs), std::make_shared<detail::RegressionScore>(options)), options_(std::move(options)) {}

  LossOutput loss(const at::Tensor& outputs, const Batch& batch, bool) const override {
    // In float64: a mean far from 0 would round the differences of float32 targets.
    const at::Tensor targets =
        ((batch[options_.target_field].to(at::kDouble) - options_.mean) / options_.deviation).to(outputs.dtype());
    const at::Tensor predicted = outputs.reshape(targets.sizes());
    return options_.huber_delta > 0 ? at::huber_loss(predicted, targets, at::Reduction::Mean, options_.huber_delta)
                                    : at::mse_loss(predicted, targets);
  }
  at::Tensor prediction(const at::Tensor& outputs) const override { return in_units(outputs, options_); }
  at::Tensor truth(const Batch& rows) const override { return rows[options_.target_field].to(at::kDouble); }
  std::vector<std::string> prediction_columns() const override { return {"predicted"}; }
  std::vector<std::string> prediction_fields(const at::Tensor& predictions, int64_t row) const override {
    return {fmt::format("{:.9g}", predictions[row].item<double>())};
  }
  std::vector<ScoreName> score_names() const override {
    const std::string unit = options_.unit.empty() ? "" : " (" + options_.unit + ")";
    return {{"rmse", "RMSE" + unit, ScoreName::Kind::kNumber},
            {"mae", "MAE" + unit, ScoreName::Kind::kNumber},
            {"r2", "R2", ScoreName::Kind::kNumber},
            {"unreadable", "unreadable", ScoreName::Kind::kCount, true}};
  }
  std::string monitor() const override { return options_.monitor; }
  std::string row_word() const override { return options_.row_word; }
  absl::Status write(const std::string& folder, const TestedRows& tested, ResultPage& page) const override;
  std::string table(const TestedRows& tested) const override {
    return detail::score_table(score_names(), tested.scores);
  }

 private:
  std::string name_of(int64_t row) const { return options_.row_name ? options_.row_name(row) : std::to_string(row); }

  RegressionOptions options_;
};

absl::Status Regression::write(const std::string& folder, const TestedRows& tested, ResultPage& page) const {
  nlohmann::ordered_json json = tested.scores;
  json["target"] = options_.target;
  json["unit"] = options_.unit;
  TRAINKIT_RETURN_IF_ERROR(write_file_atomically(Fs::posix(), folder + "/scores.json", json.dump(2) + "\n"));
  add_score_tiles(*this, tested, tested.read.sum().item<int64_t>(), page);
  page.add_section(options_.title);
  page.add_note(tested_weights_note(tested.step));
  const auto predicted = tested.predictions.accessor<double, 1>(), truth = tested.truth.accessor<double, 1>();
  const auto read = tested.read.accessor<bool, 1>();
  std::vector<int64_t> order(static_cast<size_t>(tested.size()));
  std::iota(order.begin(), order.end(), 0);
  std::erase_if(order, [&](int64_t row) { return !read[row]; });
  const auto error = [&](int64_t row) { return predicted[row] - truth[row]; };
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return std::abs(error(a)) > std::abs(error(b)); });
  constexpr size_t kMostRows = 15;
  std::vector<std::vector<ResultPage::Cell>> rows;
  for (const int64_t row : order) {
    if (rows.size() == kMostRows) break;
    rows.push_back({name_of(row), fmt::format("{:.6g}", truth[row]), fmt::format("{:.6g}", predicted[row]),
                    fmt::format("{:+.6g}", error(row))});
  }
  page.add_table("The largest errors", {options_.row_word, options_.target, "predicted", "error"}, rows);
  std::string text = options_.row_word + "," + csv_field(options_.target) + ",predicted,error\n";
  for (int64_t row = 0; row < tested.size(); ++row) {
    text += csv_field(name_of(row));
    text += read[row] ? fmt::format(",{:.9g},{:.9g},{:.6g}\n", truth[row], predicted[row], error(row)) : ",,,\n";
  }
  return write_file_atomically(Fs::posix(), folder + "/predictions.csv", text);
}

}  // namespace

namespace detail {

RegressionScore::RegressionScore(RegressionOptions options, at::Device device)
    : options_(std::move(options)), metrics_({}, device) {}

void RegressionScore::update(const at::Tensor& outputs, const Batch& rows) {
  metrics_.add(in_units(outputs, options_), rows[options_.target_field]);
}

std::shared_ptr<Task> make_regression(ModelOutputs outputs, RegressionOptions options) {
  TORCH_CHECK_VALUE(options.deviation > 0, "regression: the deviation must be > 0, got ", options.deviation);
  return std::make_shared<Regression>(std::move(outputs), std::move(options));
}

}  // namespace detail
}  // namespace trainkit
