#include "distributed/replicas/bucket_reducer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <utility>

namespace trainkit::detail {
namespace {

/// Gives `gradient` these strides, of a dense tensor, if it has other ones. The elements of all replicas then match.
void make_dense(at::Tensor& gradient, at::IntArrayRef strides) {
  if (gradient.strides() == strides) return;
  gradient = at::empty_strided(gradient.sizes(), strides, gradient.options()).copy_(gradient);
}

std::vector<at::Device> devices_of_replicas(const std::vector<std::vector<at::Tensor>>& parameters) {
  std::vector<at::Device> devices;
  devices.reserve(parameters.size());
  for (const auto& replica : parameters) devices.push_back(replica.front().device());
  return devices;
}

}  // namespace

BucketReducer::BucketReducer(std::vector<std::vector<at::Tensor>> parameters, int64_t first_bucket_bytes,
                             int64_t bucket_bytes)
    : parameters_(std::move(parameters)),
      first_bucket_bytes_(first_bucket_bytes),
      bucket_bytes_(bucket_bytes),
      streams_(devices_of_replicas(parameters_)) {
  for (const at::Tensor& parameter : parameters_.front()) {
    strides_.push_back(at::empty_like(parameter, at::TensorOptions(at::kMeta)).strides().vec());  // of a dense tensor
  }
  for (size_t replica = 0; replica < parameters_.size(); ++replica) {
    is_computed_.emplace_back(parameters_[replica].size());
    for (size_t p = 0; p < parameters_[replica].size(); ++p) {
      hooks_.emplace_back(parameters_[replica][p], [this, replica, p] { note_gradient(replica, p); });
    }
  }
}

void BucketReducer::begin() {
  streams_.check_available();
  const std::lock_guard lock(mutex_);
  is_active_ = true;
  for (auto& computed : is_computed_) std::fill(computed.begin(), computed.end(), 0);
  for (Bucket& bucket : buckets_) {
    std::fill(bucket.missing.begin(), bucket.missing.end(), bucket.parameters.size());
    bucket.replicas_missing = parameters_.size();
    bucket.is_sent = false;
  }
}

/// Called by autograd's thread of the replica's device when it has accumulated a gradient.
void BucketReducer::note_gradient(size_t replica, size_t parameter) {
  const std::lock_guard lock(mutex_);
  if (!is_active_) return;
  if (is_learning_) {
    if (replica == 0) order_.push_back(parameter);
    return;
  }
  Bucket* bucket = bucket_of_[parameter];
  if (!bucket) return;
  if (std::exchange(is_computed_[replica][parameter], 1)) {
    TORCH_CHECK(!bucket->is_sent,
                "DataParallel: a parameter received a second gradient in one backward after its sum over the replicas "
                "had started; let the first step use the parameter in the same way");
    return;
  }
  const at::NoGradGuard no_grad;
  make_dense(parameters_[replica][parameter].mutable_grad(), strides_[parameter]);
  if (--bucket->missing[replica] > 0) return;
  streams_.record(replica, bucket->ready);
  if (--bucket->replicas_missing > 0) return;
  streams_.wait_for(bucket->ready);
  bucket->is_sent = true;
  send(bucket->parameters);
}

/// Starts the sums of these gradients on NCCL's streams. Every replica has them.
void BucketReducer::send(const std::vector<size_t>& parameters) {
  streams_.launch([&] {
    for (const size_t p : parameters) {
      std::vector<at::Tensor> row;  // 1-D aliases of the gradients, as NCCL requires
      for (const auto& replica : parameters_) {
        const at::Tensor& gradient = replica[p].grad();
        row.push_back(gradient.as_strided({gradient.numel()}, {1}));
      }
      streams_.all_reduce(row);
    }
  });
}

/// Sums gradients that backward has not summed, with zeros for a replica that has none.
void BucketReducer::send_rest() {
  std::vector<size_t> left = rest_;
  for (size_t p = 0; is_learning_ && p < parameters_[0].size(); ++p) left.push_back(p);
  for (const Bucket& bucket : buckets_) {
    if (!bucket.is_sent) left.insert(left.end(), bucket.parameters.begin(), bucket.parameters.end());
  }
  std::erase_if(left, [&](size_t p) {
    return std::none_of(parameters_.begin(), parameters_.end(),
                        [p](const auto& replica) { return replica[p].grad().defined(); });
  });
  if (left.empty()) return;
  for (const size_t p : left) {
    for (const auto& replica : parameters_) {
      at::Tensor& gradient = replica[p].mutable_grad();
      if (!gradient.defined()) gradient = at::zeros_like(replica[p]);
      make_dense(gradient, strides_[p]);
    }
  }
  streams_.wait_for_devices();
  send(left);
}

void BucketReducer::finish() {
  const c10::AutoGradMode no_grad(false);
  const std::lock_guard lock(mutex_);
  is_active_ = false;
  send_rest();
  streams_.join();
  if (is_learning_) make_buckets();
}

void BucketReducer::abandon() {
  const std::lock_guard lock(mutex_);
  if (!std::exchange(is_active_, false)) return;
  order_.clear();
  streams_.join();
}

/// Divides the parameters into buckets in the order of their first gradients. Learns again in the next backward if
/// replica 0 had no rows in this one.
void BucketReducer::make_buckets() {
  if (order_.empty()) return;
  is_learning_ = false;
  std::vector<int> gradients(parameters_[0].size());
  for (const size_t p : order_) ++gradients[p];
  std::vector<size_t> some;
  size_t bytes = 0;
  const auto close = [&] {
    if (some.empty()) return;
    Bucket& bucket = buckets_.emplace_back();
    bucket.parameters = std::exchange(some, {});
    bucket.missing.resize(parameters_.size());
    bucket.ready = streams_.make_events();
    bytes = 0;
  };
  for (const size_t p : order_) {
    if (gradients[p] != 1) continue;
    some.push_back(p);
    bytes += parameters_[0][p].nbytes();
    if (bytes >= static_cast<size_t>(buckets_.empty() ? first_bucket_bytes_ : bucket_bytes_)) close();
  }
  close();
  bucket_of_.assign(gradients.size(), nullptr);
  for (Bucket& bucket : buckets_) {
    for (const size_t p : bucket.parameters) bucket_of_[p] = &bucket;
  }
  for (size_t p = 0; p < gradients.size(); ++p) {
    if (!bucket_of_[p]) rest_.push_back(p);
  }
}

}  // namespace trainkit::detail
