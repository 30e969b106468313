#pragma once
/// The memory of one batch, reused during the whole run.

#include <c10/core/Storage.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "trainkit/data/batch.h"
#include "trainkit/data/prefetcher.h"

namespace trainkit::detail {

/// Properties shared by all slots of a ring.
struct SlotLayout {
  SlotLayout(const std::vector<FieldSpec>& fields, int64_t rows, bool pin_memory);

  std::shared_ptr<const std::vector<FieldSpec>> fields;
  int64_t rows;                  // rows of a full batch
  std::vector<int64_t> offsets;  // offset of each field from the start of the slot
  int64_t bytes;
  bool pin_memory;
};

/// Memory of one batch. One thread uses it at a time; the atomics of the ring hand it over. See Note [Batch hand-over].
class Slot {
 public:
  Slot() = default;
  ~Slot() { abandon(); }
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;

  /// Allocates memory and makes tensors where the last use left none. Counts each allocation in `allocations`.
  void prepare(const SlotLayout& layout, std::atomic<int64_t>& allocations);

  BatchView view() const { return BatchView(views_, rows_); }
  std::vector<int64_t>& row_indices() { return content_->row_indices; }

  /// Returns the first `rows` rows as a batch. The memory is lent until released() returns true.
  Batch lend(int64_t rows, int64_t padding_rows);

  /// Called when the consumer asks for the next batch. Also waits for copies of this batch that the caller queued on
  /// its current stream without Batch::to.
  void expect_copies_of_caller();

  /// Returns whether nobody refers to the lent memory any more; the holders' reads then happened before the call.
  bool released() const;

  /// Waits for the device copies that read this memory.
  void finish_copies();

  /// Leaves the memory to its holders; the next prepare() allocates new memory.
  void abandon();

  /// Marks the slot as failed, without a batch.
  void fail(absl::Status why) {
    rows_read = 0;
    status = std::move(why);
  }

  // Result of the last read: the number of rows, the rows that could not be read, and the error if there is no batch.
  int64_t rows_read = 0;
  int64_t padding_rows = 0;
  std::vector<BadSample> bad_samples;
  absl::Status status;

 private:
  bool tensor_is_untouched(size_t field) const;
  at::Tensor make_tensor(size_t field, int64_t rows) const;

  std::vector<c10::Storage> storages_;  // one per field, all in one memory block
  std::vector<BatchView::Field> views_;
  std::shared_ptr<Batch::Content> content_;
  int64_t rows_ = 0;
  bool is_pinned_ = false;
  bool is_return_requested_ = false;
};

}  // namespace trainkit::detail
