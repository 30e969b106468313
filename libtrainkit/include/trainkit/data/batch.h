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

/// Named tensors of the same number of rows, and which rows they are.
///
/// A batch from a Prefetcher lends the Prefetcher's memory: it is valid until the next call of next(), unless it was
/// moved out of the optional that next() returned, in which case it keeps its memory for as long as it (or a tensor of
/// it) lives and the Prefetcher takes other memory for the slot.
class Batch {
 public:
  Batch() = default;
  /// Tensors in the order of `fields`; each (N, shape...) of the declared dtype.
  Batch(std::shared_ptr<const std::vector<FieldSpec>> fields, std::vector<at::Tensor> tensors,
        std::vector<int64_t> row_indices = {});

  /// Rows in this batch, N.
  int64_t size() const;
  bool contains(std::string_view field) const;
  /// The tensor of `field`, (N, shape...). Throws c10::IndexError that lists the fields if there is none.
  const at::Tensor& operator[](std::string_view field) const;
  const std::vector<FieldSpec>& fields() const { return *fields_; }
  const std::vector<at::Tensor>& tensors() const { return tensors_; }
  /// Indices in the dataset of the rows, in order; empty if the batch was not made from a dataset.
  std::span<const int64_t> row_indices() const { return row_indices_; }

  /// The same rows on `device`. With `non_blocking`, host memory that is page-locked is copied asynchronously on the
  /// current stream. Returns a batch that shares tensors already there.
  Batch to(at::Device device, bool non_blocking = true) const;

  /// Rows [begin, end) as views of this batch's memory: a micro-batch.
  Batch slice(int64_t begin, int64_t end) const;

 private:
  std::shared_ptr<const std::vector<FieldSpec>> fields_ = std::make_shared<const std::vector<FieldSpec>>();
  std::vector<at::Tensor> tensors_;
  std::vector<int64_t> row_indices_;
};

}  // namespace trainkit
