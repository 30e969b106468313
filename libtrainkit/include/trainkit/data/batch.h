#pragma once
/// The rows that one step trains on.

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

/// Named tensors of the same number of rows, and which rows they are.
///
/// A batch from a Prefetcher lends the Prefetcher's memory: call next() only when you are done with it. Memory that is
/// still referred to then (by the batch, by one of its tensors or a view of one, by autograd) is left to its holder and
/// the Prefetcher takes new memory for the slot: never wrong, but an allocation per batch that is kept.
/// Copies share the tensors. Threads: as for at::Tensor, concurrent reads are safe.
class Batch {
 public:
  /// What copies of a batch share.
  struct Content {
    std::shared_ptr<const std::vector<FieldSpec>> fields = {};
    std::vector<at::Tensor> tensors = {};
    std::vector<int64_t> row_indices = {};
    int64_t rows = 0;
    int64_t padding_rows = 0;
    /// Copies to devices that read this memory; null if nobody asks. A batch and its slices share them.
    std::shared_ptr<detail::PendingCopies> copies = {};
  };

  /// No fields, no rows.
  Batch();
  /// Tensors in the order of `fields`; each (N, shape...) of the declared dtype, on one device. Throws c10::ValueError
  /// if they are not.
  Batch(std::shared_ptr<const std::vector<FieldSpec>> fields, std::vector<at::Tensor> tensors,
        std::vector<int64_t> row_indices = {}, int64_t padding_rows = 0);
  explicit Batch(std::shared_ptr<const Content> content) : content_(std::move(content)) {}

  /// Rows in this batch, N.
  int64_t size() const { return content_->rows; }
  bool contains(std::string_view field) const;
  /// The tensor of `field`, (N, shape...). Throws c10::IndexError that lists the fields if there is none.
  const at::Tensor& operator[](std::string_view field) const;
  const std::vector<FieldSpec>& fields() const { return *content_->fields; }
  const std::vector<at::Tensor>& tensors() const { return content_->tensors; }
  /// Indices in the dataset of the rows, in order; empty if the batch was not made from a dataset.
  std::span<const int64_t> row_indices() const { return content_->row_indices; }
  /// Rows at the end that only repeat others, so that all ranks have as many (DistributedSampler, Tail::kPad): leave
  /// them out of metrics. 0 for any other sampler.
  int64_t padding_rows() const { return content_->padding_rows; }

  /// The same rows on `device`; shares tensors that are there already. With `non_blocking`, page-locked memory is
  /// copied asynchronously on the current stream; a Prefetcher leaves it alone until that copy has ended, also that of
  /// a slice. Copies that you make of a tensor (`batch["x"].to(device, true)`) are known to the Prefetcher if you make
  /// them in the thread that calls next(), on its current device's current stream, and call Batch::to for no part of
  /// the batch; wait for any others before you call next().
  Batch to(at::Device device, bool non_blocking = true) const;

  /// The same rows in other memory: `tensors` are copies of this batch's, in their order.
  Batch with_tensors(std::vector<at::Tensor> tensors) const;

  /// Rows [begin, end) as views of this batch's memory: a micro-batch. Throws c10::IndexError outside 0 <= begin <= end
  /// <= N.
  Batch slice(int64_t begin, int64_t end) const;

 private:
  std::shared_ptr<const Content> content_;
};

}  // namespace trainkit
