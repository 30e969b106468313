#pragma once
/// Splits the rows of a matrix into tasks for LibTorch's threads. The tasks do not depend on the number of threads, so
/// sums per task are the same, bit for bit, on every machine.

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>

#include "core/machine/parallel.h"
#include "core/machine/shapes_only.h"

namespace trainkit::detail {

/// The rows of one task; each row has `width` values.
struct Rows {
  int64_t begin, end, width;
};

inline int64_t count_tasks(int64_t rows, int64_t rows_each) { return (rows + rows_each - 1) / rows_each; }

/// Calls work(rows, task index) for tasks of `rows_each` rows on all threads, and waits for them. Calls nothing if only
/// shapes are wanted.
template <typename Work>
void for_row_tasks(int64_t rows, int64_t width, int64_t rows_each, const Work& work) {
  if (shapes_only()) return;
  parallel_for(0, count_tasks(rows, rows_each), 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      work(Rows{task * rows_each, std::min(rows, (task + 1) * rows_each), width}, task);
    }
  });
}

/// Returns the values of a tensor (bfloat16 as uint16_t); nullptr if it is undefined.
template <typename T>
const T* values_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<const T*>(tensor.const_data_ptr()) : nullptr;
}
template <typename T>
T* writable(at::Tensor& tensor) {
  return tensor.defined() ? static_cast<T*>(tensor.mutable_data_ptr()) : nullptr;
}

}  // namespace trainkit::detail
