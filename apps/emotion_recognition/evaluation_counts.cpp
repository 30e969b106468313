#include "emotion_recognition/evaluation_counts.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "trainkit/core/status.h"

namespace trainkit::emotion {

void EvaluationCounts::add(const Batch& batch, const at::Tensor& scores) {
  const int64_t rows = batch.size() - batch.padding_rows();
  if (rows <= 0) return;
  const at::Tensor labels = batch["label"].slice(0, 0, rows), predicted = scores.slice(0, 0, rows).argmax(1);
  const std::lock_guard lock(mutex_);
  auto part = std::find_if(parts_.begin(), parts_.end(), [&](const Part& p) { return p.device == predicted.device(); });
  if (part == parts_.end()) {
    part = parts_.insert(parts_.end(), {predicted.device(), ConfusionMatrix(num_classes_, predicted.device())});
  }
  part->counts.add(labels, predicted);
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

}  // namespace trainkit::emotion
