#pragma once
// A file of tensors that several ranks write. Internal to Trainer.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/device/host_tensors.h"
#include "train/checkpoint/checkpoint_manifest.h"
#include "trainkit/core/fs.h"
#include "trainkit/io/safetensors.h"

namespace trainkit::detail {

/// A tensor of a checkpoint of which each rank has a part.
struct DividedTensor {
  enum Kind { kWeight, kAverage, kState };
  Kind kind = kState;
  at::Tensor part;             // ParameterShards::part()
  std::vector<int64_t> shape;  // whole
  /// Rank r has the elements [cuts[r], cuts[r + 1]) of the tensor in row-major order. Empty if a part is not a range of
  /// them, as with channels_last.
  std::vector<int64_t> cuts;
};
using DividedTensors = std::map<std::string, DividedTensor>;  // by name

/// Writes this rank's elements into an existing safetensors file. One thread.
class DividedFile {
 public:
  /// Opens `name`, whose header another rank has written.
  static absl::StatusOr<DividedFile> open(const Directory& folder, const std::string& name);

  /// Size of the file.
  int64_t size_bytes() const { return data_begin_ + (entries_.empty() ? 0 : entries_.back().end); }

  /// Sets what this rank writes: its parts of the divided tensors, and on rank 0 all others. A tensor without cuts is
  /// whole on rank 0. Throws c10::Error for a tensor that does not fit the file.
  void assign(const NamedTensors& own, const DividedTensors& divided, int64_t rank);
  /// Writes tensors of about `bytes` bytes and flushes them.
  absl::Status write(int64_t bytes);
  bool is_written() const { return written_ == offsets_.size(); }
  absl::Status close() { return file_.close(); }
  /// Digest of the bytes that this rank has written, in the order of the file.
  std::string digest() const { return digest_.hex(); }

 private:
  DividedFile(WritableFile file, std::vector<SafetensorsEntry> entries, int64_t data_begin)
      : file_(std::move(file)), entries_(std::move(entries)), data_begin_(data_begin) {}
  WritableFile file_;
  std::vector<SafetensorsEntry> entries_;
  int64_t data_begin_;
  std::vector<int64_t> offsets_;  // of the tensors, in the file
  std::optional<HostTensors> tensors_;
  size_t written_ = 0;
  Digest digest_;
};

/// Reads a complete file back. Returns its size and digest, after checking that the elements of each rank have the
/// digest that it reported (DividedFile::digest()). Error of exit code 6: the file does not have the bytes of a rank.
absl::StatusOr<FileRecord> read_back(const Directory& folder, const std::string& name, const DividedTensors& divided,
                                     const std::vector<std::string>& digests);

}  // namespace trainkit::detail
