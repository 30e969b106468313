#pragma once
/// The rows of one training step.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trainkit/data/dataset.h"

namespace trainkit {

namespace detail {
class PendingCopies;
}

/// Holds named tensors with the same number of rows, and the indices of these rows in the dataset.
///
/// A batch from a Prefetcher borrows the Prefetcher's memory: call next() only after you have finished with the batch.
/// If the batch, a tensor, a view or autograd still refers to that memory when next() is called, the memory stays with
/// its holder. The Prefetcher then allocates new memory for the slot. This is always correct and costs one allocation
/// per kept batch. Copies share the tensors. Threads: concurrent reads are safe, as for at::Tensor.
class Batch {
 public:
  /// State shared by the copies of a batch.
  struct Content {
    std::shared_ptr<const std::vector<FieldSpec>> fields = {};
    std::vector<at::Tensor> tensors = {};
    std::vector<int64_t> row_indices = {};
    int64_t rows = 0;
    int64_t padding_rows = 0;
    /// Registry of the copies to devices that read this memory; null if the memory does not belong to a Prefetcher.
    /// Shared with slices and with the Prefetcher. Thread-safe, and no part of the batch's value.
    std::shared_ptr<detail::PendingCopies> copies = {};
    /// Parts of the rows that a Prefetcher has copied to several devices ahead of the loop; see Batch::shard.
    std::vector<std::shared_ptr<const Content>> shards = {};
  };

  /// Makes an empty batch without fields.
  Batch();
  /// Takes one tensor per field, in the order of `fields`. Each has shape (N, shape...) and the declared dtype; all are
  /// on one device. Throws c10::ValueError otherwise.
  Batch(std::shared_ptr<const std::vector<FieldSpec>> fields, std::vector<at::Tensor> tensors,
        std::vector<int64_t> row_indices = {}, int64_t padding_rows = 0);
  explicit Batch(std::shared_ptr<const Content> content) : content_(std::move(content)) {}
  const std::shared_ptr<const Content>& content() const { return content_; }

  /// Number of rows in this batch, N.
  int64_t size() const { return content_->rows; }
  bool contains(std::string_view field) const;
  /// Tensor of `field`, (N, shape...). Throws c10::IndexError, which lists the fields, if there is no such field.
  const at::Tensor& operator[](std::string_view field) const;
  const std::vector<FieldSpec>& fields() const { return *content_->fields; }
  const std::vector<at::Tensor>& tensors() const { return content_->tensors; }
  /// Dataset indices of the rows, in order; empty if the batch does not come from a dataset.
  std::span<const int64_t> row_indices() const { return content_->row_indices; }
  /// Number of duplicate rows at the end, which give all ranks the same row count (DistributedSampler,
  /// UnevenTail::kPad). Leave them out of metrics. 0 for every other sampler.
  int64_t padding_rows() const { return content_->padding_rows; }

  /// Copies the rows to `device`; shares tensors that are already there. With `non_blocking`, page-locked memory is
  /// copied asynchronously on the current stream. Registers the copy with the Prefetcher, which does not reuse the
  /// memory before the copy has ended; the batch itself does not change. This holds for slices too.
  ///
  /// The Prefetcher also tracks your own copies of a tensor (`batch["x"].to(device, true)`) if all of this holds: the
  /// thread that calls next() makes them, on its current device's current stream, and Batch::to is not called for any
  /// part of the batch. Wait for any other copy before you call next().
  Batch to(at::Device device, bool non_blocking = true) const;

  /// Returns the same rows with other memory: `tensors` are copies of this batch's tensors, in the same order, with
  /// equal values.
  Batch with_tensors(std::vector<at::Tensor> tensors) const;

  /// Returns the rows of replica `index` of `count` on `device`: rows [N * index / count, N * (index + 1) / count).
  /// Uses the copy that the Prefetcher has made ahead (Prefetcher::use_devices), if there is one; otherwise copies the
  /// rows as to() does. On the CPU it returns views, like slice(). A device without an index is the current one. Throws
  /// c10::IndexError unless 0 <= index < count.
  Batch shard(int64_t index, int64_t count, at::Device device) const;

  /// Returns rows [begin, end) as views of this batch's memory, for example as a micro-batch. Throws c10::IndexError
  /// unless 0 <= begin <= end <= N.
  Batch slice(int64_t begin, int64_t end) const;

 private:
  std::shared_ptr<const Content> content_;
};

}  // namespace trainkit
