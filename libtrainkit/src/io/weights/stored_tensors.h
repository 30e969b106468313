#pragma once
/// Reads tensors of weight files when they are used, in pieces, so that no tensor of a file has to be in memory.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trainkit/io/safetensors.h"
#include "trainkit/io/weight_file.h"

namespace trainkit::detail {

/// Returns the tensor of `source` for each one of `target`. Errors: those of copy_named_tensors() for tensors that do
/// not match.
absl::StatusOr<std::vector<const at::Tensor*>> match_named_tensors(const NamedTensors& source,
                                                                   const NamedTensors& target,
                                                                   const std::string& where);

/// Tensors of files, each represented by a tensor of its shape and dtype without values, on the meta device. Lists of
/// them can be renamed, filtered and compared with those of a model before anything is read. Every function also takes
/// tensors with values and uses these. Not thread-safe.
class StoredTensors {
 public:
  /// Most bytes of a piece.
  static constexpr int64_t kPieceBytes = int64_t{8} << 20;
  /// Takes a piece, a contiguous vector on the CPU that is overwritten after the call, and the number of its first
  /// value.
  using UsePiece = std::function<absl::Status(const at::Tensor& piece, int64_t first)>;

  /// Represents the tensors below a container, as WeightFile::tensors. Errors: its own, except those of reading values.
  absl::StatusOr<NamedTensors> list(const WeightFile& file, std::string_view prefix);
  /// Represents all tensors of a file.
  absl::StatusOr<NamedTensors> list(const SafetensorsFile& file);

  /// Verifies the digests of the storages that contain `tensors`. Files of safetensors have none.
  absl::Status verify(const NamedTensors& tensors);
  /// Calls `use` for each piece of a tensor until it returns an error.
  absl::Status for_each_piece(const at::Tensor& tensor, const UsePiece& use);
  /// Reads a tensor with values of its own.
  absl::StatusOr<at::Tensor> read(const at::Tensor& tensor);
  /// Reads all of a list. Tensors that share memory in a file of PyTorch share it here.
  absl::Status read_all(NamedTensors& tensors);
  /// Copies the values into `target`, of the same shape and of any dtype and device. Call without autograd.
  absl::Status copy(const at::Tensor& tensor, const at::Tensor& target);
  /// copy_named_tensors() for tensors of files. After an error of reading values some of them may have been copied.
  absl::Status copy_all(const NamedTensors& source, const NamedTensors& target, const std::string& where);

 private:
  /// One tensor; exactly one of the files is set.
  struct Place {
    std::shared_ptr<const SafetensorsFile> safetensors = nullptr;
    std::shared_ptr<const TorchFile> torch = nullptr;
    size_t entry = 0;
    at::Tensor placeholder = {};  // keeps the address, the key, in use
  };

  absl::StatusOr<at::Tensor> add(Place place, const std::vector<int64_t>& shape, at::ScalarType type);
  absl::Status add_all(const std::shared_ptr<const SafetensorsFile>& file, const std::string& start, NamedTensors& all);
  absl::Status add_all(const std::shared_ptr<const TorchFile>& file, const std::string& start, NamedTensors& all);
  const Place* place_of(const at::Tensor& tensor) const;
  absl::Status read_into(const Place& place, int64_t first, const at::Tensor& values) const;

  std::unordered_map<const void*, Place> places_;
  /// Storages of files of PyTorch that have been verified.
  std::set<std::pair<const void*, int64_t>> verified_;
  at::Tensor buffer_ = {};
  /// The storage of the tensor read last, which its next view needs too; within read_all() every storage.
  std::map<std::pair<const void*, int64_t>, at::Tensor> storages_ = {};
  bool keeps_storages_ = false;
};

}  // namespace trainkit::detail
