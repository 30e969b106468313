#pragma once
// The memory of a replay buffer.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "trainkit/data/dataset.h"

namespace trainkit::detail {

/// A ring of rows, one block of memory per field. Row r, counted since the run began, is in slot r % slots().
class RowRing {
 public:
  /// Allocates all memory, uninitialised. Throws std::bad_alloc.
  RowRing(const std::vector<FieldSpec>& fields, int64_t slots);

  int64_t slots() const { return slots_; }
  /// Bytes of a row over all fields.
  int64_t row_bytes() const { return row_bytes_; }
  std::span<const BatchView::Field> blocks() const { return blocks_; }

  /// Copies rows [begin, end) of all fields to `to`: those of the first field, then those of the second, ...
  void read(int64_t begin, int64_t end, std::byte* to) const;
  /// The reverse, from `from`.
  void write(int64_t begin, int64_t end, const std::byte* from);
  /// Copies row `from` to row `to`.
  void move_row(int64_t from, int64_t to);

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  int64_t slots_, row_bytes_ = 0;
  std::vector<std::unique_ptr<std::byte, Free>> memory_;
  std::vector<BatchView::Field> blocks_;
};

}  // namespace trainkit::detail
