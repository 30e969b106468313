#include "distributed/shards/weight_gathering.h"

#include <ATen/core/grad_mode.h>

#include <string>
#include <utility>

#include "core/tensors/recorded.h"

namespace trainkit::detail {

void WeightGathering::begin() {
  for (Bucket& bucket : buckets_) {
    bucket.is_started = false;
    bucket.work = nullptr;
  }
}

void WeightGathering::start(size_t number) {
  Bucket& bucket = buckets_[number];
  if (std::exchange(bucket.is_started, true)) return;
  const at::NoGradGuard no_grad;
  const ExchangeScope sending;
  bucket.work = collectives_.all_gather(bucket.weights);
}

void WeightGathering::start() {
  for (size_t number = 0; number < buckets_.size(); ++number) start(number);
}

void WeightGathering::finish() {
  for (size_t number = 0; number < buckets_.size(); ++number) {
    Bucket& bucket = buckets_[number];
    bucket.is_started = false;
    collectives_.wait(std::exchange(bucket.work, nullptr), "allgather(weights " + std::to_string(number) + ")");
  }
}

void WeightGathering::run() {
  const ProfileStage stage("gather weights");
  start();
  finish();
}

}  // namespace trainkit::detail
