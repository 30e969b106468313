#pragma once
// Shared by optimizer.cpp and optimizer_state.cpp.

#include <cstdint>
#include <string>
#include <vector>

#include "trainkit/optim/optimizer.h"

namespace trainkit {

/// The parameters of one group and dtype, and of one bucket of shards: the operands of one fused kernel.
struct Optimizer::Bucket {
  size_t group = 0;
  size_t shard = 0;
  std::vector<std::string> names;
  std::vector<at::Tensor> params;
  std::vector<std::vector<at::Tensor>> state;  ///< Indexed by name of state_names(), then by parameter.
  std::vector<int64_t> positions;              ///< Positions of the parameters' counts in steps_.
  std::vector<at::Tensor> steps;               ///< Views of these counts.
  std::vector<at::Tensor> gradients;           ///< Filled during a step; undefined if there is none.

  /// Returns the bucket reduced to the parameters that have a gradient.
  Bucket with_gradients() const {
    Bucket some;
    some.group = group;
    some.state.resize(state.size());
    for (size_t i = 0; i < params.size(); ++i) {
      if (!gradients[i].defined()) continue;
      some.params.push_back(params[i]);
      some.gradients.push_back(gradients[i]);
      some.steps.push_back(steps[i]);
      for (size_t k = 0; k < state.size(); ++k) some.state[k].push_back(state[k][i]);
    }
    return some;
  }
};

}  // namespace trainkit
