#include "trainkit/data/dataset.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "data/datasets/reading_row.h"

namespace trainkit {

namespace detail {
thread_local std::atomic<int64_t>* reading_row = nullptr;
}  // namespace detail

int64_t FieldSpec::row_bytes() const {
  int64_t bytes = static_cast<int64_t>(at::elementSize(dtype));
  for (const int64_t size : shape) bytes *= size;
  return bytes;
}

std::ostream& operator<<(std::ostream& out, const FieldSpec& field) {
  return out << field.name << ": " << field.dtype << " " << at::IntArrayRef(field.shape);
}

void Dataset::get_batch(std::span<const RowKey> keys, const BatchView& out) const {
  // Eight rows ahead hides the memory latency and still fits the L1 cache with rows of 1 KB.
  constexpr size_t kAhead = 8;
  for (size_t i = 0; i < std::min(kAhead, keys.size()); ++i) prefetch(keys[i].index);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (i + kAhead < keys.size()) prefetch(keys[i + kAhead].index);
    detail::note_reading(keys[i]);
    get(keys[i], out, static_cast<int64_t>(i));
  }
}

at::Tensor row_tensor(const BatchView& view, size_t field, const FieldSpec& spec, int64_t row) {
  return at::from_blob(view.row(field, row), spec.shape, at::TensorOptions(spec.dtype));
}

}  // namespace trainkit
