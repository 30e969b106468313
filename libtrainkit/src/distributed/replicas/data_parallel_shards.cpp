// The parts of DataParallel for reductions during backward and for a divided training state (Sharding).
#include <unordered_set>

#include "core/tensors/recorded.h"
#include "distributed/replicas/data_parallel.h"

namespace trainkit::detail {

void DataParallel::divide_parameters(const std::function<bool(const at::Tensor&)>& is_whole) {
  if (sharding() == Sharding::kNone || !shards_.empty()) return;
  follow_model();  // layers that were frozen since create()
  DeviceReplicatorOptions options = options_;
  options.gradient_compression = GradientCompression::kNone;  // it is for processes
  std::vector<std::unique_ptr<ParameterShards>> shards;
  for (size_t replica = 0; replica < sums_.parameters().size(); ++replica) {
    std::unordered_set<const void*> whole;  // the same parameters on each replica
    for (size_t p = 0; is_whole && p < sums_.parameters()[0].size(); ++p) {
      if (is_whole(sums_.parameters()[0][p])) whole.insert(sums_.parameters()[replica][p].unsafeGetTensorImpl());
    }
    shards.push_back(std::make_unique<ParameterShards>(
        sums_.parameters()[replica],
        [&](const at::Tensor& parameter) { return whole.contains(parameter.unsafeGetTensorImpl()); }, options,
        collectives_->of(static_cast<int64_t>(replica))));
  }
  shards_ = std::move(shards);
}

ParameterShards* DataParallel::shards(int64_t copy) const {
  return shards_.empty() ? nullptr : shards_.at(static_cast<size_t>(copy)).get();
}

void DataParallel::gather_weights() {
  const ProfileStage stage("gather weights");
  const at::NoGradGuard no_grad;
  for (const auto& shards : shards_) shards->gathering().start();
  for (const auto& shards : shards_) shards->gathering().finish();
}

void DataParallel::abandon_step() {
  seed_.restart();
  for (const auto& shards : shards_) shards->reduction().release();
}

void DataParallel::begin_reduction(bool reduces) {
  TORCH_CHECK(sharding() == Sharding::kNone || !shards_.empty(),
              "run() of sharded replicas needs a TrainStep or Trainer, which divides the parameters first");
  if (reduces && sums_.reducer()) sums_.reducer()->begin();
  if (collectives_) collectives_->begin();
  for (const auto& shards : shards_) shards->begin(reduces || shards->reduction().reduces_every_run());
}

/// Forward and backward of a replica, in its thread.
void DataParallel::run_replica(int64_t replica, const Body& body, bool is_last) {
  const at::Tensor loss = body(replica);
  if (loss.defined()) phases_.backward(replica, loss);
  if (shards_.empty()) return;
  ParameterShards& shards = *shards_[static_cast<size_t>(replica)];
  shards.reduction().end(/*contribute=*/true);
  const auto missing = loss.defined() && is_last ? shards.reduction().without_gradient() : std::nullopt;
  if (!missing) return;
  const auto names = unique_parameters(*modules_[static_cast<size_t>(replica)]);
  const void* parameter = sums_.parameters()[static_cast<size_t>(replica)][*missing].unsafeGetTensorImpl();
  for (const auto& [name, tensor] : names) {
    TORCH_CHECK_VALUE(tensor.unsafeGetTensorImpl() != parameter, "the loss did not reach ", name,
                      ": sharding needs a gradient of every trained parameter");
  }
}

}  // namespace trainkit::detail
