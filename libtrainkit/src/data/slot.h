#pragma once
/// The memory of one batch, reused for the whole run.

#include <c10/core/Storage.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "trainkit/data/batch.h"
#include "trainkit/data/prefetcher.h"

namespace trainkit::detail {

/// What all slots of a ring have in common.
struct SlotLayout {
  SlotLayout(const std::vector<FieldSpec>& fields, int64_t rows, bool pin_memory);

  std::shared_ptr<const std::vector<FieldSpec>> fields;
  int64_t rows;                  // of a full batch
  std::vector<int64_t> offsets;  // of each field, from the beginning of the slot
  int64_t bytes;
  bool pin_memory;
};

/// One slot. It is used by one thread at a time: handed over through the atomics of the ring.
class Slot {
 public:
  Slot() = default;
  ~Slot() { abandon(); }
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;

  /// Takes memory and makes tensors where the last use left none. Counts each taking of memory in `allocations`.
  void prepare(const SlotLayout& layout, std::atomic<int64_t>& allocations);

  BatchView view() const { return BatchView(views_, rows_); }
  std::vector<int64_t>& row_indices() { return content_->row_indices; }

  /// The first `rows` rows as a batch, lent until released() says that nobody refers to them any more.
  Batch lend(int64_t rows, int64_t padding_rows);

  /// The consumer asks for the next batch: copies of this one that it may have queued without Batch::to, on its current
  /// stream, are waited for as well.
  void expect_copies_of_caller();

  /// Whether all that was lent has been given back, and what its holders read happened before.
  bool released() const;

  /// Waits for copies to a device that read this memory.
  void finish_copies();

  /// Leaves the memory to those who hold it; the next prepare() takes other memory.
  void abandon();

  /// There is no batch, and this is why.
  void fail(absl::Status why) {
    rows_read = 0;
    status = std::move(why);
  }

  // What the last read left: the rows written, the rows it could not read, and why there is no batch, if so.
  int64_t rows_read = 0;
  int64_t padding_rows = 0;
  std::vector<BadSample> bad_samples;
  absl::Status status;

 private:
  bool tensor_is_untouched(size_t field) const;
  at::Tensor make_tensor(size_t field, int64_t rows) const;

  std::vector<c10::Storage> storages_;  // one per field, all of one block of memory
  std::vector<BatchView::Field> views_;
  std::shared_ptr<Batch::Content> content_;
  int64_t rows_ = 0;
  bool is_pinned_ = false;
  bool is_asked_back_ = false;
};

}  // namespace trainkit::detail
