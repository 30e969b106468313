#include "distributed/shards/shard_reduction.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "core/tensors/recorded.h"
#include "distributed/group/wire_type.h"

namespace trainkit::detail {
namespace {

/// Buckets of kGradients that exist at the same time.
constexpr size_t kMostPending = 2;

}  // namespace

ShardReduction::ShardReduction(const ShardLayout& layout, const std::vector<at::Tensor>& parameters,
                               const std::vector<at::Tensor>& parts, const DeviceReplicatorOptions& options,
                               const ShardCollectives& collectives)
    : layout_(layout),
      parameters_(parameters),
      parts_(parts),
      sharding_(options.sharding),
      compression_(options.gradient_compression),
      collectives_(collectives),
      buckets_(layout.buckets().size()),
      states_(parameters.size()) {
  const at::NoGradGuard no_grad;
  order_.buckets.resize(buckets_.size());
  std::iota(order_.buckets.begin(), order_.buckets.end(), size_t{0});
  for (size_t b = 0; b < buckets_.size(); ++b) allocate(b);
  for (size_t p = 0; p < parameters_.size(); ++p) {
    hooks_.emplace_back(parameters_[p], [this, p] { note_gradient(p); });
  }
}

at::TensorOptions ShardReduction::options_of(size_t bucket) const {
  return parameters_[layout_.buckets()[bucket].parameters.front()].options().requires_grad(false);
}

void ShardReduction::allocate(size_t number) {
  Bucket& bucket = buckets_[number];
  const ShardedBucket& places = layout_.buckets()[number];
  if (sharding_ == Sharding::kOptimizer) {
    bucket.gradients = at::zeros({layout_.elements(number)}, options_of(number));
    bucket.own = layout_.own_part(number, bucket.gradients);
  } else {
    bucket.own = at::zeros({places.part}, options_of(number));
  }
  for (const size_t p : places.parameters) {
    states_[p].part_gradient = layout_.cut(p, bucket.own);
    if (bucket.gradients.defined()) states_[p].place = layout_.view(p, bucket.gradients);
  }
  if (collectives_.share && bucket.gradients.defined()) collectives_.share(bucket.gradients);
}

void ShardReduction::begin(bool reduces, std::function<void()> on_sent) {
  is_active_ = true;
  reduces_ = reduces;
  on_sent_ = std::move(on_sent);
  order_.sent = order_.received = 0;
  order_.completed.clear();
  for (Parameter& parameter : states_) parameter.is_computed = false;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    buckets_[b].missing = layout_.buckets()[b].parameters.size();
    buckets_[b].is_sent = false;
  }
}

/// Called when a gradient of a parameter has been accumulated.
void ShardReduction::note_gradient(size_t parameter) {
  if (!is_active_) return;
  const at::NoGradGuard no_grad;
  const size_t number = layout_.bucket_of(parameter);
  Bucket& bucket = buckets_[number];
  TORCH_CHECK_VALUE(!bucket.is_sent,
                    "sharding: a parameter received another gradient in one backward after its bucket had been sent; "
                    "several checkpointed segments of the model must not share a parameter");
  states_[parameter].has_gradient = true;
  if (sharding_ == Sharding::kOptimizer) put_in_bucket(parameter);
  if (!reduces_ || std::exchange(states_[parameter].is_computed, true)) return;
  if (--bucket.missing == 0) order_.completed.push_back(number);
  while (order_.sent < buckets_.size() && buckets_[order_.buckets[order_.sent]].missing == 0) {
    send_next(/*contribute=*/true);
  }
  // The exchange of agree_on_order() comes first on every rank, also on one that has no loss and calls nothing here.
  if (order_.sent == buckets_.size() && order_.is_known && on_sent_) std::exchange(on_sent_, nullptr)();
}

/// Makes the gradient of a parameter a view of its bucket.
void ShardReduction::put_in_bucket(size_t parameter) {
  at::Tensor& gradient = parameters_[parameter].mutable_grad();
  const at::Tensor& place = states_[parameter].place;
  if (gradient.const_data_ptr() == place.const_data_ptr()) return;
  at::Tensor(place).copy_(gradient);
  gradient = place;
}

/// Copies the gradients of a bucket into its memory; zeros for those that are missing.
void ShardReduction::fill(size_t bucket) {
  std::vector<at::Tensor> places, gradients;  // to copy together
  for (const size_t p : layout_.buckets()[bucket].parameters) {
    at::Tensor& gradient = parameters_[p].mutable_grad();
    const at::Tensor& own = states_[p].place;
    const at::Tensor place = own.defined() ? own : layout_.view(p, buckets_[bucket].gradients);
    if (!gradient.defined()) {
      at::Tensor(place).zero_();
    } else if (gradient.const_data_ptr() != place.const_data_ptr()) {
      places.push_back(place);
      gradients.push_back(gradient);
    }
    if (sharding_ == Sharding::kGradients) gradient.reset();
  }
  if (!places.empty()) at::_foreach_copy_(places, gradients);
}

/// Starts the reduction of the next bucket.
void ShardReduction::send_next(bool contribute) {
  const size_t number = order_.buckets[order_.sent];
  Bucket& bucket = buckets_[number];
  if (sharding_ == Sharding::kGradients) {
    if (order_.sent - order_.received >= kMostPending) receive_next();
    bucket.gradients = at::empty({layout_.elements(number)}, options_of(number));
  }
  ++order_.sent;
  bucket.is_sent = true;
  if (contribute) {
    fill(number);
  } else {
    bucket.gradients.zero_();
  }
  const auto type = wire_type(compression_, bucket.gradients);
  bucket.sent = type ? bucket.gradients.to(*type) : bucket.gradients;
  bucket.work = collectives_.reduce_scatter(bucket.sent);
}

/// Waits for the oldest bucket that was sent.
void ShardReduction::receive_next() {
  const size_t number = order_.buckets[order_.received++];
  Bucket& bucket = buckets_[number];
  collectives_.wait(std::exchange(bucket.work, nullptr), "reducescatter(bucket " + std::to_string(number) + ")");
  const at::Tensor sum = layout_.own_part(number, std::exchange(bucket.sent, at::Tensor()));
  if (sum.const_data_ptr() != bucket.own.const_data_ptr()) {
    is_summed_ ? bucket.own.add_(sum) : bucket.own.copy_(sum);
  }
  if (sharding_ == Sharding::kGradients) bucket.gradients.reset();
}

void ShardReduction::receive_all() {
  const ProfileStage stage("wait for gradients of other ranks");
  while (order_.received < order_.sent) receive_next();
}

/// Takes over the order in which rank 0 completed its buckets; buckets that it did not complete come last. If it
/// completed none, as it had no rows, the ranks try again after the next reduction.
void ShardReduction::agree_on_order() {
  at::Tensor turns = at::zeros({static_cast<int64_t>(buckets_.size())}, at::kDouble);
  for (size_t i = 0; layout_.rank() == 0 && i < order_.completed.size(); ++i) {
    turns[static_cast<int64_t>(order_.completed[i])] = static_cast<double>(i + 1);
  }
  turns = turns.to(parameters_.front().device());
  collectives_.all_reduce(turns);
  turns = turns.to(at::kCPU);
  if (!turns.any().item<bool>()) return;
  const auto turn_of = [&](size_t bucket) {
    const double turn = turns.const_data_ptr<double>()[bucket];
    return turn > 0 ? turn : static_cast<double>(buckets_.size() + 1);
  };
  std::stable_sort(order_.buckets.begin(), order_.buckets.end(),
                   [&](size_t a, size_t b) { return turn_of(a) < turn_of(b); });
  order_.is_known = true;
}

void ShardReduction::end(bool contribute) {
  if (!is_active_) return;
  const at::NoGradGuard no_grad;
  is_active_ = false;
  if (!reduces_) return;
  while (order_.sent < buckets_.size()) send_next(contribute);
  receive_all();
  if (!order_.is_known) agree_on_order();
  is_summed_ = true;
  for (size_t p = 0; p < parts_.size(); ++p) parts_[p].mutable_grad() = states_[p].part_gradient;
}

std::optional<size_t> ShardReduction::without_gradient() const {
  const auto missing = std::find_if(states_.begin(), states_.end(), [](const auto& one) { return !one.has_gradient; });
  return missing == states_.end() ? std::nullopt : std::optional<size_t>(missing - states_.begin());
}

void ShardReduction::release() {
  is_active_ = is_summed_ = false;
  for (Parameter& parameter : states_) parameter.has_gradient = false;
  for (const at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
  for (const at::Tensor& part : parts_) part.mutable_grad().reset();
  for (Bucket& bucket : buckets_) {  // of a run that failed
    bucket.work = nullptr;
    bucket.sent.reset();
    if (sharding_ == Sharding::kGradients) bucket.gradients.reset();
  }
}

std::vector<at::Tensor> ShardReduction::memory() const {
  std::vector<at::Tensor> memory;
  for (const Bucket& bucket : buckets_) {
    memory.push_back(sharding_ == Sharding::kOptimizer ? bucket.gradients : bucket.own);
  }
  return memory;
}

}  // namespace trainkit::detail
