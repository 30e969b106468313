#pragma once
// Sums gradients over ranks in the buckets of c10d's Reducer.

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <utility>
#include <vector>

#include "core/base/time_sum.h"
#include "distributed/group/process_group_impl.h"
#include "distributed/replicas/rank_reduction.h"

namespace trainkit::detail {

/// See Note [Reducer hook].
class ReducerBuckets final : public GradientSums {
 public:
  using Parameters = std::vector<std::pair<std::string, at::Tensor>>;
  /// Reduces the gradients of `trained`. Adds to `time` what backward does not hide. Keeps the references.
  ReducerBuckets(ProcessGroup::Impl& ranks, Parameters trained, const DeviceReplicatorOptions& options, TimeSum& time);

  void begin() override;
  void arrange() override;
  void run(const DeviceReplicator::Body& body, const Run& run) override;
  void complete(bool contribute, bool records_order) override;
  void throw_if_broken() override;
  void abandon(bool reduced) override;
  void rearrange() override { reducer_->reset_state(); }
  void forget_sent() override;

 private:
  struct Sent;
  class Hook;
  void share_buckets();
  void accumulate();

  ProcessGroup::Impl& ranks_;
  Parameters trained_;
  const DeviceReplicatorOptions& options_;
  TimeSum& time_;
  std::shared_ptr<Sent> sent_;
  std::shared_ptr<c10d::Reducer> reducer_;
  std::shared_ptr<c10d::Logger> logger_;  // required by the Reducer with find_unused_parameters
};

}  // namespace trainkit::detail
