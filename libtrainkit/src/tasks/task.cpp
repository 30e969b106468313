#include "trainkit/tasks/task.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "tasks/format_scores.h"
#include "train/evaluation/replica_scores.h"
#include "trainkit/core/data_error.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

constexpr char kUnreadable[] = "unreadable";

/// The rows that one replica has tested; tensors stay on its device, so that adding does not synchronise.
struct ReplicaRows {
  std::vector<int64_t> rows;
  std::vector<at::Tensor> predictions, truth;
};
using Column = std::vector<at::Tensor> ReplicaRows::*;

/// Returns zeros (rows, ...) like the tensors of a rank that has some, on all ranks. A rank may have read no row.
absl::StatusOr<at::Tensor> zeros_like_rows(const at::Tensor& some, int64_t rows, ProcessGroup* group) {
  constexpr int64_t kMostDims = 8;
  at::Tensor layout = at::zeros({2 + kMostDims}, at::kLong);  // type, number of dimensions, sizes
  auto* const cells = layout.mutable_data_ptr<int64_t>();
  if (some.defined()) {
    TORCH_CHECK_VALUE(some.dim() <= kMostDims, "predictions have at most ", kMostDims, " dimensions");
    cells[0] = static_cast<int64_t>(some.scalar_type());
    cells[1] = some.dim();
    std::copy(some.sizes().begin(), some.sizes().end(), cells + 2);
  }
  if (group) TRAINKIT_RETURN_IF_ERROR(group->all_reduce_max(layout, "sizes of the predictions"));
  std::vector<int64_t> shape(cells + 2, cells + 2 + std::max<int64_t>(cells[1], 1));
  shape[0] = rows;
  return at::zeros(shape, static_cast<at::ScalarType>(cells[0]));
}

/// Copies a column of all replicas to the CPU, and exchanges it between ranks, each of which has some of the rows.
absl::StatusOr<at::Tensor> gather(const std::vector<ReplicaRows>& parts, Column column, int64_t rows,
                                  ProcessGroup* group) {
  const auto some = std::find_if(parts.begin(), parts.end(), [&](const auto& part) { return !(part.*column).empty(); });
  TRAINKIT_ASSIGN_OR_RETURN(
      const at::Tensor all,
      zeros_like_rows(some == parts.end() ? at::Tensor() : ((*some).*column).front(), rows, group));
  for (const ReplicaRows& part : parts) {
    if ((part.*column).empty()) continue;
    all.index_copy_(0, at::tensor(part.rows, at::kLong), at::cat(part.*column).cpu());
  }
  if (group) TRAINKIT_RETURN_IF_ERROR(group->all_reduce(all, "gathering the predictions"));
  return all;
}

/// Returns (rows) bool: those that any replica or rank has tested.
absl::StatusOr<at::Tensor> read_rows(const std::vector<ReplicaRows>& parts, int64_t rows, ProcessGroup* group) {
  const at::Tensor read = at::zeros({rows}, at::kLong);
  for (const ReplicaRows& part : parts) read.index_fill_(0, at::tensor(part.rows, at::kLong), 1);
  if (group) TRAINKIT_RETURN_IF_ERROR(group->all_reduce(read, "gathering the predictions"));
  return read.to(at::kBool);
}

}  // namespace

Task::Task(ModelOutputs outputs, const std::shared_ptr<const Score>& score)
    : outputs_(std::move(outputs)), score_(score), validation_(std::make_shared<detail::ReplicaScores>(score)) {}

LossFunction Task::training_loss() const {
  return make_loss_function([task = shared_from_this()](torch::nn::Module& model, const Batch& batch) {
    return task->loss(task->outputs_(model, batch), batch, /*trains=*/true);
  });
}

LossFunction Task::validation_loss() const {
  return make_loss_function([task = shared_from_this()](torch::nn::Module& model, const Batch& batch) {
    const at::Tensor outputs = task->outputs_(model, batch);
    task->validation_->update(outputs, batch);
    return task->loss(outputs, batch, /*trains=*/false);
  });
}

absl::Status Task::add_scores(ProcessGroup* group, Metrics& metrics) const {
  if (const std::string best = monitor(); best != "loss") metrics[best] = std::numeric_limits<double>::quiet_NaN();
  TRAINKIT_ASSIGN_OR_RETURN(const auto score, validation_->take(group));
  for (const auto& [name, value] : evaluation_scores(*score, metrics)) metrics[name] = value;
  return absl::OkStatus();
}

absl::StatusOr<TestedRows> Task::test(DeviceReplicator& devices, Prefetcher* loader, int64_t rows, Precision precision,
                                      ProcessGroup* group) const {
  TORCH_CHECK_VALUE(loader, "Task::test: no loader of the rows to test");
  detail::ReplicaScores scores(score_);
  std::vector<ReplicaRows> parts(static_cast<size_t>(devices.replicas()));
  TRAINKIT_RETURN_IF_ERROR(
      for_each_batch(devices, *loader, precision, [&](int64_t replica, torch::nn::Module& model, const Batch& batch) {
        // Skip padding rows, which make ranks equal in length: each row counts once.
        const Batch own = batch.slice(0, batch.size() - batch.padding_rows());
        if (own.size() == 0) return;
        const at::Tensor outputs = outputs_(model, own);
        scores.update(outputs, own);
        ReplicaRows& part = parts[static_cast<size_t>(replica)];
        part.rows.insert(part.rows.end(), own.row_indices().begin(), own.row_indices().end());
        if (const at::Tensor kept = prediction(outputs); kept.defined()) part.predictions.push_back(kept);
        if (const at::Tensor is = truth(own); is.defined())
          part.truth.push_back(is.clone());  // the loader reuses memory
      }));
  TestedRows tested;
  tested.bad_samples = loader->bad_samples();
  const c10::InferenceMode inference;
  TRAINKIT_ASSIGN_OR_RETURN(tested.predictions, gather(parts, &ReplicaRows::predictions, rows, group));
  TRAINKIT_ASSIGN_OR_RETURN(tested.truth, gather(parts, &ReplicaRows::truth, rows, group));
  TRAINKIT_ASSIGN_OR_RETURN(tested.read, read_rows(parts, rows, group));
  TRAINKIT_ASSIGN_OR_RETURN(tested.score, scores.take(group));
  if (rows > 0 && !tested.read.any().item<bool>()) {  // on all ranks alike
    const BadSample first =
        tested.bad_samples.empty() ? BadSample{.cause = "other ranks say why"} : tested.bad_samples[0];
    return data_error("data.empty", {.file = first.name},
                      "none of the test " + row_word() + "s can be read: " + first.cause);
  }
  tested.scores = this->scores(*tested.score, /*is_test=*/true);
  for (const ScoreName& name : score_names()) {
    if (name.key == kUnreadable)
      tested.scores[kUnreadable] = static_cast<double>(rows - tested.read.sum().item<int64_t>());
  }
  return tested;
}

void add_score_tiles(const Task& task, const TestedRows& tested, int64_t rows, ResultPage& page) {
  std::string note = fmt::format("{} test {}s", rows, task.row_word());
  for (const ScoreName& name : task.score_names()) {
    if (name.aside && tested.scores.contains(name.key)) {
      note += ", " + name.title + " " + detail::format_score(name, tested.scores);
    }
  }
  for (const ScoreName& name : task.score_names()) {
    if (name.aside || !tested.scores.contains(name.key)) continue;
    page.add_tile(detail::format_score(name, tested.scores), name.long_title.empty() ? name.title : name.long_title,
                  std::exchange(note, ""));
  }
}

}  // namespace trainkit
