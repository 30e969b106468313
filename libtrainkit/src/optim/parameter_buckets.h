#pragma once
// The parameters of an optimizer, in groups and in buckets.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trainkit/optim/optimizer.h"

namespace trainkit::detail {

/// The parameters of one group and dtype, and of one bucket of shards: the operands of one fused kernel.
struct ParameterBucket {
  size_t group = 0;
  size_t shard = 0;
  std::vector<std::string> kinds;  ///< Optimizer::state_names() of the group.
  std::vector<std::string> names;
  std::vector<at::Tensor> params;
  std::vector<std::vector<at::Tensor>> state;  ///< Indexed by kind, then by parameter.
  std::vector<int64_t> positions;              ///< Positions of the parameters' counts in StepCounts.
  std::vector<at::Tensor> steps;               ///< Views of these counts.
  std::vector<at::Tensor> gradients;           ///< Filled during a step; undefined if there is none.

  /// Returns the bucket reduced to the parameters that have a gradient.
  ParameterBucket with_gradients() const;
};

struct ParameterBuckets {
  std::vector<ParamGroup> groups = {};
  std::vector<ParameterBucket> buckets = {};  ///< In the order of their updates.
  bool takes_sparse = false;                  ///< Optimizer::BaseOptions::takes_sparse
  double initial_state = 0;                   ///< Optimizer::BaseOptions::initial_state

  /// Throws c10::ValueError unless `group` can be added.
  void check(const ParamGroup& group) const;
  /// Returns new buckets for `group`, to be added. Its parameters have the counts from `position` on. `shard_of`
  /// returns a parameter's bucket of shards; null: all are in one.
  std::vector<ParameterBucket> buckets_for(const ParamGroup& group, const std::vector<std::string>& kinds,
                                           int64_t position,
                                           const std::function<size_t(const at::Tensor&)>& shard_of) const;
  void zero_grad(bool set_to_none) const;
  /// Optimizer::gradients(). Throws c10::ValueError for a gradient that the kernels cannot read.
  std::vector<at::Tensor> gradients() const;
  /// Returns the gradient of `bucket`'s parameter `i`, undefined if there is none. Coalesces a sparse one in its place.
  /// Throws c10::ValueError if the kernels cannot read it.
  const at::Tensor& gradient_of(const ParameterBucket& bucket, size_t i) const;
};

}  // namespace trainkit::detail
