#pragma once
/// A folder per class, with one array per row: root/cat/0001.npy, root/dog/7.npy.

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trainkit/data/dataset.h"

namespace trainkit {

/// Reads .npy files of one shape and dtype as rows, each at its turn. Fields: "x", the array, and "y", the number of
/// its class as int64. Classes are the names of the folders in ascending order, and rows the files of each in ascending
/// order, as in torchvision.datasets.DatasetFolder. Hidden files are left out. An array that cannot be read or differs
/// from the first one in shape or dtype is a bad row (OnError). Thread-safe.
class ArrayFolder final : public Dataset {
 public:
  /// Lists the files and reads the first one. Errors, exit code 4: data.folder if `root` cannot be read, or has no
  /// folder with .npy files; those of read_npy.
  static absl::StatusOr<std::shared_ptr<const ArrayFolder>> open(const std::string& root);

  const std::vector<std::string>& classes() const { return classes_; }
  /// Path of a row below the root: "cat/0001.npy".
  const std::string& name(int64_t index) const { return names_[static_cast<size_t>(index)]; }
  int64_t label(int64_t index) const { return labels_[static_cast<size_t>(index)]; }

  int64_t size() const override { return static_cast<int64_t>(names_.size()); }
  const std::vector<FieldSpec>& fields() const override { return fields_; }
  void get(const RowKey& key, const BatchView& out, int64_t at) const override;
  std::string describe(int64_t index) const override { return root_ + "/" + name(index); }

 private:
  explicit ArrayFolder(std::string root) : root_(std::move(root)) {}
  std::string root_;
  std::vector<std::string> classes_, names_;
  std::vector<int64_t> labels_;
  std::vector<FieldSpec> fields_;
};

}  // namespace trainkit
