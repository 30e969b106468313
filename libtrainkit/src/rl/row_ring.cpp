#include "rl/row_ring.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

#include "core/base/round_up.h"

namespace trainkit::detail {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;  // rows in random order: fewer misses of the TLB

/// Calls visit(slot, count, done) for the one or two pieces of the rows [begin, end) that are contiguous in the ring.
template <class Visit>
void for_each_piece(int64_t begin, int64_t end, int64_t slots, const Visit& visit) {
  for (int64_t row = begin; row < end;) {
    const int64_t slot = row % slots, count = std::min(end - row, slots - slot);
    visit(slot, count, row - begin);
    row += count;
  }
}

}  // namespace

void RowRing::Free::operator()(std::byte* data) const { std::free(data); }

RowRing::RowRing(const std::vector<FieldSpec>& fields, int64_t slots) : slots_(slots) {
  for (const FieldSpec& field : fields) {
    const int64_t row = field.row_bytes();
    if (row > 0 && slots > std::numeric_limits<int64_t>::max() / 2 / row) throw std::bad_alloc();
    const int64_t bytes = round_up(std::max<int64_t>(slots * row, 1), kHugePage);
    memory_.emplace_back(static_cast<std::byte*>(std::aligned_alloc(kHugePage, static_cast<size_t>(bytes))));
    if (!memory_.back()) throw std::bad_alloc();
    madvise(memory_.back().get(), static_cast<size_t>(bytes), MADV_HUGEPAGE);
    blocks_.push_back({memory_.back().get(), row});
    row_bytes_ += row;
  }
}

void RowRing::read(int64_t begin, int64_t end, std::byte* to) const {
  for (const BatchView::Field& block : blocks_) {
    const auto size = [&](int64_t rows) { return static_cast<size_t>(rows * block.row_bytes); };
    for_each_piece(begin, end, slots_, [&](int64_t slot, int64_t count, int64_t done) {
      std::memcpy(to + size(done), block.data + size(slot), size(count));
    });
    to += size(end - begin);
  }
}

void RowRing::write(int64_t begin, int64_t end, const std::byte* from) {
  for (const BatchView::Field& block : blocks_) {
    const auto size = [&](int64_t rows) { return static_cast<size_t>(rows * block.row_bytes); };
    for_each_piece(begin, end, slots_, [&](int64_t slot, int64_t count, int64_t done) {
      std::memcpy(block.data + size(slot), from + size(done), size(count));
    });
    from += size(end - begin);
  }
}

void RowRing::move_row(int64_t from, int64_t to) {
  for (const BatchView::Field& block : blocks_) {
    std::memcpy(block.data + to % slots_ * block.row_bytes, block.data + from % slots_ * block.row_bytes,
                static_cast<size_t>(block.row_bytes));
  }
}

}  // namespace trainkit::detail
