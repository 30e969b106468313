#pragma once
/// The rows that the tests of Prefetcher load.

#include <torch/types.h>

#include <cstdint>
#include <memory>

#include "trainkit/data/tensor_dataset.h"

namespace trainkit::test {

/// Row i has i in "y" and 3 i, 3 i + 1, 3 i + 2 in "x".
inline std::shared_ptr<const Dataset> numbers(int64_t rows) {
  return std::make_shared<TensorDataset>(
      TensorDataset({{"x", torch::arange(rows * 3).reshape({rows, 3})}, {"y", torch::arange(rows)}}));
}

}  // namespace trainkit::test
