#pragma once
/// The rows of a matrix, shared by LibTorch's threads in tasks that do not depend on how many threads there are: what a
/// task sums is the same bits on every machine.

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>

#include "core/parallel.h"

namespace trainkit::detail {

/// The rows of one task, of `width` values each.
struct Rows {
  int64_t begin, end, width;
};

inline int64_t count_tasks(int64_t rows, int64_t rows_each) { return (rows + rows_each - 1) / rows_each; }

/// Calls work(rows, number of the task) for tasks of `rows_each` rows on all threads, and waits for them.
template <typename Work>
void for_row_tasks(int64_t rows, int64_t width, int64_t rows_each, const Work& work) {
  parallel_for(0, count_tasks(rows, rows_each), 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      work(Rows{task * rows_each, std::min(rows, (task + 1) * rows_each), width}, task);
    }
  });
}

/// The values of a tensor, a bfloat16 as uint16_t; nullptr if it is undefined.
template <typename T>
const T* values_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<const T*>(tensor.const_data_ptr()) : nullptr;
}
template <typename T>
T* writable(at::Tensor& tensor) {
  return tensor.defined() ? static_cast<T*>(tensor.mutable_data_ptr()) : nullptr;
}

}  // namespace trainkit::detail
