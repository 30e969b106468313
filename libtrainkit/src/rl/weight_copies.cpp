#include "rl/weight_copies.h"

#include <ATen/ops/empty.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "core/base/round_up.h"
#include "core/device/streaming_copy.h"

namespace trainkit::detail {

NamedWeights::NamedWeights(const torch::nn::Module& model) {
  std::unordered_set<const void*> seen;  // a tied parameter is copied once
  for (const auto& all : {model.named_parameters(), model.named_buffers()}) {
    for (const auto& item : all) {
      if (!item.value().defined() || !seen.insert(item.value().unsafeGetTensorImpl()).second) continue;
      names.push_back(item.key());
      tensors.push_back(item.value());
    }
  }
}

WeightLayout::WeightLayout(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    const auto found = std::find(dtypes_.begin(), dtypes_.end(), tensor.scalar_type());
    const auto block = static_cast<size_t>(found - dtypes_.begin());
    if (found == dtypes_.end()) {
      dtypes_.push_back(tensor.scalar_type());
      lengths_.push_back(0);
    }
    const bool is_dense = tensor.is_non_overlapping_and_dense();
    places_.push_back({block, lengths_[block], tensor.sizes().vec(),
                       is_dense ? tensor.strides().vec() : at::empty(tensor.sizes(), at::kMeta).strides().vec()});
    lengths_[block] += round_up(tensor.numel(), kStreamedLine);  // elements, so that each begins a cache line
  }
}

std::unique_ptr<WeightBlocks> WeightLayout::make(at::Device device, bool page_locked) const {
  auto version = std::make_unique<WeightBlocks>();
  for (size_t b = 0; b < dtypes_.size(); ++b) {
    const auto options = at::TensorOptions(device).dtype(dtypes_[b]).pinned_memory(page_locked);
    version->blocks.push_back(at::empty({lengths_[b]}, options));
  }
  for (const Place& place : places_) {
    version->tensors.push_back(version->blocks[place.block].as_strided(place.sizes, place.strides, place.offset));
  }
  return version;
}

std::shared_ptr<WeightBlocks> HostVersions::take() {
  std::unique_ptr<WeightBlocks> version;
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      version = std::move(free_.back());
      free_.pop_back();
    }
  }
  if (!version) version = layout_->make(at::kCPU, page_locked_);
  return {version.release(),
          [self = shared_from_this()](WeightBlocks* ended) { self->give_back(std::unique_ptr<WeightBlocks>(ended)); }};
}

void HostVersions::give_back(std::unique_ptr<WeightBlocks> version) {
  // A model or a reader may still have tensors with this memory: then it is theirs.
  size_t references = 0;
  for (const at::Tensor& block : version->blocks) references += block.storage().use_count();
  if (references != version->blocks.size() + version->tensors.size()) return;
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(version));
}

}  // namespace trainkit::detail
