#pragma once
/// Datasets of arrays: tensors in memory, and memory-mapped array files.

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trainkit/data/dataset.h"
#include "trainkit/io/mapped_file.h"

namespace trainkit {

// ---- Dataset of tensors in memory.

/// Returns row i of each tensor as row i.
///
///   auto dataset = std::make_shared<TensorDataset>(TensorDataset({{"x", images}, {"y", labels}}));
///
/// Batches are gathered with software prefetch, at memory bandwidth.
/// Source: torch.utils.data.TensorDataset.
class TensorDataset final : public Dataset {
 public:
  /// Takes tensors (N, shape...) on the CPU. Contiguous tensors are shared, others are copied. Throws c10::ValueError
  /// if the list is empty, the tensors differ in N, one is not on the CPU, or two have the same name.
  explicit TensorDataset(std::vector<std::pair<std::string, at::Tensor>> tensors);

  int64_t size() const override { return size_; }
  const std::vector<FieldSpec>& fields() const override { return fields_; }
  void get(const RowKey& key, const BatchView& out, int64_t at) const override;
  void get_batch(std::span<const RowKey> keys, const BatchView& out) const override;
  void prefetch(int64_t index) const override;

 private:
  struct Column {
    const std::byte* data;
    int64_t row_bytes;
  };
  std::vector<at::Tensor> tensors_;
  std::vector<FieldSpec> fields_;
  std::vector<Column> columns_;
  int64_t size_ = 0;
};

// ---- Rows of a memory-mapped array file.

/// Maps an array file and returns row i of the array as row i. The file is not loaded: a data set larger than memory
/// uses only the operating system's page cache.
///
///   auto images = MappedArrayDataset::open_npy("images.npy", "x").value();                        // numpy.save
///   auto tokens = MappedArrayDataset::open_raw("rows.bin", {"x", at::kFloat, {256}}).value();     // ndarray.tofile
///
/// Batches are gathered as in TensorDataset. If a file is truncated while it is mapped, the affected rows fail with
/// data.damaged; the process does not crash.
class MappedArrayDataset final : public Dataset {
 public:
  /// Opens a NumPy file (format 1.0 to 3.0) in C order and little-endian, of numbers or bool. The first dimension
  /// counts rows; at least one dimension is required. Errors (exit code 4): those of MappedFile::open; data.npy, which
  /// names the problem or the unsupported feature (Fortran order, big-endian, objects, which are pickles). Source:
  /// numpy.lib.format, NumPy 2.4.
  static absl::StatusOr<std::shared_ptr<const MappedArrayDataset>> open_npy(const std::string& path,
                                                                            const std::string& field);

  /// Opens a file that holds only the rows of `field`, one after the other, in this machine's byte order. Errors (exit
  /// code 4): those of MappedFile::open; data.array if the file size is not a multiple of the row size.
  static absl::StatusOr<std::shared_ptr<const MappedArrayDataset>> open_raw(const std::string& path, FieldSpec field);

  int64_t size() const override { return size_; }
  const std::vector<FieldSpec>& fields() const override { return fields_; }
  void get(const RowKey& key, const BatchView& out, int64_t at) const override;
  void get_batch(std::span<const RowKey> keys, const BatchView& out) const override;
  void prefetch(int64_t index) const override;

 private:
  MappedArrayDataset(std::shared_ptr<const MappedFile> file, FieldSpec field, int64_t offset, int64_t size);
  void check() const;

  std::shared_ptr<const MappedFile> file_;
  std::vector<FieldSpec> fields_;
  const std::byte* rows_;
  int64_t row_bytes_;
  int64_t size_;
};

}  // namespace trainkit
