#include "arrays/files/stored_array.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>

#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

constexpr int64_t kPieceBytes = int64_t{64} << 20;  // of the file in memory at a time

int64_t product(std::span<const int64_t> sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

/// Copies rows [begin, begin + count) of `array`, in the order of the file, into a new tensor of bytes.
at::Tensor rows_in_file_order(const StoredArray& array, const std::vector<int64_t>& stored, size_t rows, int64_t begin,
                              int64_t count) {
  const std::span<const int64_t> sizes(stored);
  const auto element = static_cast<int64_t>(c10::elementSize(array.dtype));
  const int64_t outer = product(sizes.first(rows)), row = product(sizes.subspan(rows + 1)) * element;
  at::Tensor bytes = at::empty({outer * count * row}, at::kByte);
  const std::byte* const from = array.file->bytes().data() + array.offset;
  for (int64_t i = 0; i < outer && count * row > 0; ++i) {
    std::memcpy(bytes.mutable_data_ptr<uint8_t>() + i * count * row, from + (i * sizes[rows] + begin) * row,
                static_cast<size_t>(count * row));
  }
  return bytes;
}

/// Writes rows [begin, begin + count) to `out`, contiguous, of the raw dtype.
void copy_rows(const StoredArray& array, int64_t begin, int64_t count, const at::Tensor& out) {
  const auto element = static_cast<int64_t>(c10::elementSize(array.dtype));
  const std::byte* const from = array.file->bytes().data() + array.offset;
  if (out.numel() == 0) return;
  if (std::is_sorted(array.order.begin(), array.order.end())) {
    const int64_t row = product(std::span<const int64_t>(array.sizes).subspan(array.sizes.empty() ? 0 : 1)) * element;
    std::memcpy(out.data_ptr(), from + begin * row, out.nbytes());
    return;
  }
  std::vector<int64_t> stored, place(array.order.size());
  for (size_t i = 0; i < array.order.size(); ++i) {
    stored.push_back(array.sizes[static_cast<size_t>(array.order[i])]);
    place[static_cast<size_t>(array.order[i])] = static_cast<int64_t>(i);
  }
  const auto rows = static_cast<size_t>(place[0]);
  at::Tensor view;
  if (reinterpret_cast<uintptr_t>(from) % element == 0) {
    view = at::from_blob(const_cast<std::byte*>(from), stored, out.options()).narrow(place[0], begin, count);
    out.copy_(view.permute(place));
  } else {
    const at::Tensor bytes = rows_in_file_order(array, stored, rows, begin, count);
    stored[rows] = count;
    out.copy_(bytes.view(out.scalar_type()).view(stored).permute(place));
  }
}

}  // namespace

at::ScalarType raw_dtype(at::ScalarType dtype) { return dtype == at::kBool ? at::kByte : dtype; }

at::Tensor values_of_raw(const at::Tensor& raw, at::ScalarType dtype, bool is_swapped) {
  if (is_swapped) swap_bytes(raw);
  return dtype == at::kBool ? raw.ne(0) : raw;
}

void swap_bytes(const at::Tensor& tensor) {
  const auto size = static_cast<int64_t>(tensor.element_size());
  auto* bytes = static_cast<char*>(tensor.data_ptr());
  for (int64_t i = 0; i < tensor.numel(); ++i) std::reverse(bytes + i * size, bytes + (i + 1) * size);
}

absl::StatusOr<at::Tensor> StoredArray::read() const {
  const at::Tensor out = at::empty(sizes, raw_dtype(dtype));
  const int64_t rows = sizes.empty() ? 1 : sizes[0];
  const int64_t row_bytes = rows == 0 ? 1 : static_cast<int64_t>(out.nbytes()) / rows;
  const int64_t piece = std::max<int64_t>(1, kPieceBytes / std::max<int64_t>(1, row_bytes));
  for (int64_t begin = 0; begin < rows; begin += piece) {
    const int64_t count = std::min(piece, rows - begin);
    copy_rows(*this, begin, count, sizes.empty() ? out : out.narrow(0, begin, count));
    file->release();
  }
  TRAINKIT_RETURN_IF_ERROR(file->check());
  return values_of_raw(out, dtype, is_swapped);
}

absl::StatusOr<at::Tensor> StoredArray::read_rows(int64_t begin, int64_t count) const {
  std::vector<int64_t> part = sizes;
  part[0] = count;
  const at::Tensor out = at::empty(part, raw_dtype(dtype));
  copy_rows(*this, begin, count, out);
  file->release();
  TRAINKIT_RETURN_IF_ERROR(file->check());
  return values_of_raw(out, dtype, is_swapped);
}

}  // namespace trainkit::detail
