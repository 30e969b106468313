#include "app/results/classification.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/tensor.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "report/markup.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/nn/functional.h"

namespace trainkit {

at::Tensor class_weights(const std::vector<int64_t>& counts) {
  const auto present =
      static_cast<double>(std::count_if(counts.begin(), counts.end(), [](int64_t n) { return n > 0; }));
  const auto total = static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  std::vector<float> weights;
  weights.reserve(counts.size());
  for (const int64_t count : counts) {
    weights.push_back(count > 0 ? static_cast<float>(total / (present * static_cast<double>(count))) : 0.0F);
  }
  return at::tensor(weights);
}

ClassificationLoss::ClassificationLoss(at::Tensor weights, double label_smoothing) : label_smoothing_(label_smoothing) {
  if (weights.defined()) weights_.push_back(std::move(weights));
}

at::Tensor ClassificationLoss::weights_on(at::Device device) {
  const std::lock_guard lock(mutex_);
  for (const at::Tensor& copy : weights_) {
    if (copy.device() == device) return copy;
  }
  return weights_.emplace_back(weights_.front().to(device));
}

at::Tensor ClassificationLoss::operator()(const at::Tensor& scores, const at::Tensor& labels) {
  if (weights_.empty() && label_smoothing_ == 0) return cross_entropy(scores, labels);
  std::optional<at::Tensor> weights;
  if (!weights_.empty()) weights = weights_on(scores.device()).to(scores.scalar_type());
  return at::cross_entropy_loss(scores, labels, weights, at::Reduction::Sum, -100, label_smoothing_) /
         static_cast<double>(scores.size(0));
}

void EvaluationCounts::add(const Batch& batch, const at::Tensor& labels, const at::Tensor& scores) {
  const int64_t rows = batch.size() - batch.padding_rows();
  if (rows <= 0) return;
  const at::Tensor truth = labels.slice(0, 0, rows), predicted = scores.slice(0, 0, rows).argmax(1);
  const std::lock_guard lock(mutex_);
  auto part = std::find_if(parts_.begin(), parts_.end(), [&](const Part& p) { return p.device == predicted.device(); });
  if (part == parts_.end()) {
    part = parts_.insert(parts_.end(), {predicted.device(), ConfusionMatrix(num_classes_, predicted.device())});
  }
  part->counts.add(truth, predicted);
}

absl::StatusOr<at::Tensor> EvaluationCounts::take(ProcessGroup* group) {
  const c10::InferenceMode inference;  // the counts are inference tensors, which can be changed only in this mode
  const std::lock_guard lock(mutex_);
  ConfusionMatrix all(num_classes_);
  for (const Part& part : parts_) all.add(part.counts);
  parts_.clear();
  if (group) TRAINKIT_RETURN_IF_ERROR(all.add_other_ranks(*group));
  return all.counts();
}

std::string draw_confusion(const at::Tensor& counts, const std::vector<std::string>& labels) {
  constexpr int kCell = 56, kLetter = 8, kLongest = 120;
  size_t longest = 13;  // letters that fit into the least margins
  for (const std::string& label : labels) longest = std::max(longest, std::min<size_t>(label.size(), kLongest));
  const int left = 16 + kLetter * static_cast<int>(longest), top = 23 + kLetter * static_cast<int>(longest) * 2 / 3;
  const int classes = static_cast<int>(labels.size()), side = kCell * classes;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
      "<text x=\"{2}\" y=\"20\" text-anchor=\"middle\">predicted</text>\n"
      "<text x=\"8\" y=\"20\">true</text>\n",
      left + side + top, top + side + 20, left + side / 2);
  for (int k = 0; k < classes; ++k) {
    const std::string name = detail::escape_markup(escape_text(labels[static_cast<size_t>(k)], kLongest));
    svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n", left - 8, top + k * kCell + 33, name);
    svg += fmt::format("<text transform=\"translate({},{}) rotate(-40)\">{}</text>\n", left + k * kCell + 24, top - 8,
                       name);
    const at::Tensor row = counts[k];
    const auto total = static_cast<double>(std::max<int64_t>(row.sum().item<int64_t>(), 1));
    for (int j = 0; j < classes; ++j) {
      const auto count = row[j].item<int64_t>();
      const double share = static_cast<double>(count) / total;
      svg += fmt::format(
          "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"#1f5fa8\" fill-opacity=\"{:.3f}\" "
          "stroke=\"#ccc\"><title>{} of {:.0f}</title></rect>\n",
          left + j * kCell, top + k * kCell, kCell, kCell, share, count, total);
      svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" fill=\"{}\">{}</text>\n",
                         left + j * kCell + kCell / 2, top + k * kCell + 33, share > 0.5 ? "white" : "black", count);
    }
  }
  return svg + "</svg>\n";
}

}  // namespace trainkit
