#include "trainkit/train/score.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "train/evaluation/replica_scores.h"
#include "trainkit/core/status.h"

namespace trainkit {

void Score::merge(const Score& other) {
  const c10::InferenceMode inference;  // sums of an evaluation are inference tensors, which change only in this mode
  const std::vector<at::Tensor> own = sums(), theirs = other.sums();
  for (size_t i = 0; i < own.size(); ++i) own[i].add_(theirs.at(i).to(own[i].device()));
}

absl::Status Score::merge_ranks(ProcessGroup& group) {
  const c10::InferenceMode inference;
  for (const at::Tensor& sum : sums()) TRAINKIT_RETURN_IF_ERROR(group.all_reduce(sum, "all_reduce(score)"));
  return absl::OkStatus();
}

namespace detail {

void ReplicaScores::update(const at::Tensor& outputs, const Batch& batch) {
  const int64_t rows = batch.size() - batch.padding_rows();
  if (rows <= 0) return;
  const std::lock_guard lock(mutex_);
  auto part = std::find_if(parts_.begin(), parts_.end(), [&](const auto& p) { return p.first == outputs.device(); });
  if (part == parts_.end()) {
    part = parts_.insert(parts_.end(), {outputs.device(), kind_->empty_on(outputs.device())});
  }
  if (rows == batch.size()) return part->second->update(outputs, batch);
  part->second->update(outputs.slice(0, 0, rows), batch.slice(0, rows));
}

absl::StatusOr<std::unique_ptr<Score>> ReplicaScores::take(ProcessGroup* group) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Score> all = kind_->empty_on(at::kCPU);
  for (const auto& [device, part] : parts_) all->merge(*part);
  parts_.clear();
  if (group) TRAINKIT_RETURN_IF_ERROR(all->merge_ranks(*group));
  return all;
}

}  // namespace detail
}  // namespace trainkit
