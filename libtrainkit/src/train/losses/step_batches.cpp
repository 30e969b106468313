#include "train/losses/step_batches.h"

#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

namespace trainkit::detail {

namespace {

/// Returns those of the rows from `begin` to `end`; of an empty part, whose place a row without weight may take, one.
std::shared_ptr<const std::vector<Shared>> rows_of(const Shared& shared, int64_t begin, int64_t end) {
  Shared rows;
  for (const auto& [name, tensor] : shared) {
    const int64_t last = std::max(begin + 1, end);
    rows.emplace(name, tensor.slice(0, std::min(begin, tensor.size(0) - 1), last));
  }
  return std::make_shared<const std::vector<Shared>>(1, std::move(rows));
}

}  // namespace

KeptBatch& StepBatches::next() {
  const auto i = static_cast<size_t>(count_);
  if (kept_.size() <= i) kept_.resize(i + 1);
  return kept_[i];
}

void StepBatches::keep_reference(const Batch& batch) { next().batch = batch; }

void StepBatches::keep(const Batch& batch, size_t place) {
  KeptBatch& kept = next();
  if (is_last(count_)) {
    kept.batch = batch;
    return;
  }
  const c10::AutoGradMode no_grad(false);
  std::vector<at::Tensor> copies;
  for (size_t t = 0; t < batch.tensors().size(); ++t) {
    const at::Tensor& tensor = batch.tensors()[t];
    std::vector<at::Tensor>& memories = kept.memory[tensor.is_cpu() ? place : 0];
    memories.resize(batch.tensors().size());
    at::Tensor& memory = memories[t];
    const bool fits = memory.defined() && memory.scalar_type() == tensor.scalar_type() &&
                      memory.device() == tensor.device() && memory.dim() == tensor.dim() &&
                      memory.sizes().slice(1) == tensor.sizes().slice(1) && memory.size(0) >= tensor.size(0) &&
                      memory.storage().use_count() == 1;  // else the loss function has kept its rows
    if (!fits) memory = at::empty_like(tensor, tensor.options().pinned_memory(tensor.is_pinned()));
    copies.push_back(memory.narrow(0, 0, tensor.size(0)));
    copies.back().copy_(tensor, /*non_blocking=*/tensor.is_cuda());
  }
  kept.batch = batch.with_tensors(std::move(copies));
}

void StepBatches::add(const LossFunction* borrowed, LossFunction own, const std::vector<Shared>* shared) {
  KeptBatch& kept = at(count_++);
  kept.borrowed_loss = borrowed;
  kept.own_loss = std::move(own);
  kept.shared = shared;
}

void StepBatches::set_split(int64_t split) {
  TORCH_CHECK_VALUE(split >= 1, "split must be >= 1, got ", split);
  split_ = split;
}

bool StepBatches::can_split() const {
  const auto by_row = [](const KeptBatch& kept) {
    if (!kept.shared) return true;
    const auto fits = [&](const auto& entry) {
      const at::Tensor& tensor = entry.second;
      return tensor.defined() && !tensor.requires_grad() && tensor.dim() > 0 && tensor.size(0) == kept.batch.size();
    };
    return kept.shared->size() == 1 && std::all_of(kept.shared->front().begin(), kept.shared->front().end(), fits);
  };
  return std::all_of(kept_.begin(), kept_.begin() + count_, by_row);
}

std::vector<StepBatches::Part> StepBatches::parts(int64_t i, bool keep_empty) const {
  const KeptBatch& kept = at(i);
  const Batch& batch = kept.batch;
  if (split() == 1) return {{batch, is_last(i), kept.shared}};
  std::vector<Part> parts;
  for (int64_t part = 0; part < split_; ++part) {
    const int64_t begin = batch.size() * part / split_, end = batch.size() * (part + 1) / split_;
    const bool is_last_part = is_last(i) && part + 1 == split_;
    if (begin == end && !is_last_part && !keep_empty) continue;
    parts.push_back({batch.slice(begin, end), is_last_part});
    if (!kept.shared) continue;
    parts.back().own_shared = rows_of(kept.shared->front(), begin, end);
    parts.back().shared = parts.back().own_shared.get();
  }
  return parts;
}

void StepBatches::note_rows(StepMetrics& metrics) const {
  constexpr int64_t kMost = 8;
  for (int64_t i = 0; i < count_; ++i) {
    const Batch& batch = at(i).batch;
    const auto first = batch.row_indices().first(
        static_cast<size_t>(std::clamp<int64_t>(kMost - metrics.rows, 0, std::ssize(batch.row_indices()))));
    metrics.row_indices.insert(metrics.row_indices.end(), first.begin(), first.end());
    metrics.rows += batch.size() - batch.padding_rows();
  }
}

void StepBatches::clear() {
  for (KeptBatch& kept : kept_) {
    kept.batch = Batch();
    kept.borrowed_loss = nullptr;
    kept.own_loss = nullptr;
    kept.shared = nullptr;
  }
  count_ = begun_ = 0;
}

}  // namespace trainkit::detail
