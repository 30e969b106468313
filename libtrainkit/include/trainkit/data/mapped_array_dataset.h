#pragma once
/// Rows of an array in a file, read through memory.

#include <absl/status/statusor.h>

#include <memory>
#include <string>
#include <vector>

#include "trainkit/data/dataset.h"
#include "trainkit/io/mapped_file.h"

namespace trainkit {

/// Row i is row i of the array in a file, which is mapped, not loaded: a set larger than memory costs what the system
/// keeps of it in its cache.
///
///   auto images = MappedArrayDataset::open_npy("images.npy", "x").value();                        // numpy.save
///   auto tokens = MappedArrayDataset::open_raw("rows.bin", {"x", at::kFloat, {256}}).value();     // ndarray.tofile
///
/// Batches are gathered as TensorDataset's are. A file that is cut short while it is mapped is an error of the rows
/// that are read then (data.damaged), not the end of the process.
class MappedArrayDataset final : public Dataset {
 public:
  /// A NumPy file (format 1.0 to 3.0): C order, little-endian, of numbers or bool, with at least one dimension, which
  /// is that of rows. Errors (exit code 4): those of MappedFile::open; data.npy, which names what is wrong with the
  /// file or is not supported (Fortran order, big-endian, objects: those would be pickles). Source: numpy.lib.format,
  /// NumPy 2.4.
  static absl::StatusOr<std::shared_ptr<const MappedArrayDataset>> open_npy(const std::string& path,
                                                                            const std::string& field);

  /// Rows of `field` one after the other and nothing else, in this machine's byte order. Errors (exit code 4): those of
  /// MappedFile::open; data.array if the file is not a whole number of rows.
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
