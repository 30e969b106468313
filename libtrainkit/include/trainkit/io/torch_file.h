#pragma once
/// Weights in and out as PyTorch's own files, `torch.save(state_dict)`: zip archives (PyTorch 1.6 and later) and the
/// older files that begin with a pickle. Nothing in a file can run code: the pickle is read by a machine of our own
/// that builds numbers, text, containers and tensors, and calls nothing.
/// Source: torch/serialization.py and torch/_weights_only_unpickler.py of PyTorch 2.11.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trainkit/core/fs.h"
#include "trainkit/io/safetensors.h"

namespace trainkit {

/// One tensor of a file.
struct TorchEntry {
  /// Keys and positions from the outermost container to the tensor, with dots between: "fc.weight",
  /// "state_dict.module.fc.weight", "optimizer.state.0.exp_avg", "2". Empty if the file is one tensor.
  std::string name;
  /// PyTorch's name: "float32", "bfloat16", "bool", ...
  std::string dtype;
  std::vector<int64_t> shape;
  /// In elements.
  std::vector<int64_t> strides;
  /// Elements of the tensor times the bytes of one; tensors that share a storage each count.
  int64_t bytes = 0;
  /// Tensors of one number share memory, as tied weights do.
  int64_t storage = 0;
  /// Of the first element in the storage, in elements.
  int64_t storage_offset = 0;
};

/// A PyTorch file that was opened for reading.
///
///   auto file = TorchFile::open("model.pt").value();
///   NamedTensors weights = file.tensors(file.state_dict_prefix().value()).value();
///
/// open() reads the archive's directory and the pickle and checks both as a whole: every tensor it lists lies within
/// its storage, every storage within the file. Of the pickle it allows the opcodes that build data (protocols 2 to 5)
/// and the names collections.OrderedDict, torch.Size, the storages and dtypes of torch, _rebuild_tensor (also _v2 and
/// _v3) and _rebuild_parameter: what torch.save writes of a state dict, or of a checkpoint of dicts, lists, numbers and
/// tensors. Everything else is an error that names it and its offset: whole models, NumPy values, sparse and quantised
/// tensors, TorchScript, tar files of PyTorch 0.1. A zip must be as torch.save writes it: stored entries without gaps.
///
/// Data is read when it is asked for, by pread into memory of its own and not mapped, for the reasons of
/// SafetensorsFile; the CRC of a zip's storage is checked then. Devices of the file are passed over: all is on the CPU.
/// Any number of threads may read.
class TorchFile {
 public:
  /// Opens and checks a file. Errors are of exit code 5 (kNotFound if there is no such file).
  static absl::StatusOr<TorchFile> open(const std::string& path, const Fs& fs = Fs::posix());
  static absl::StatusOr<TorchFile> open(ReadableFile file);

  /// In the order of the file.
  const std::vector<TorchEntry>& entries() const;
  std::vector<std::string> names() const;
  bool contains(std::string_view name) const;
  /// What is not a tensor, as text by the same kind of names: {"epoch", "3"}, {"best_prec1", "91.78"}. At most the
  /// first 10,000.
  const std::vector<std::pair<std::string, std::string>>& values() const;
  /// Whether the file is of the format before PyTorch 1.6.
  bool is_legacy() const;
  const std::string& path() const;

  /// The container that holds a model's weights: "" if the outermost does; else the only one with tensors; else the
  /// first there is of "state_dict", "model_state_dict", "model", "net", "network", "weights", "module". kNotFound if
  /// there is no tensor, kInvalidArgument with a list if there are several containers of other names.
  absl::StatusOr<std::string> state_dict_prefix() const;

  /// A tensor with the sizes and strides of the file, in memory that it shares with no other. Reads its whole storage.
  /// kNotFound with the nearest name; kResourceExhausted if there is no memory; kDataLoss if the file was cut since it
  /// was opened; weights.digest if a CRC is wrong.
  absl::StatusOr<at::Tensor> tensor(std::string_view name) const;

  /// All tensors below a container ("" is the outermost), by their names within it. Each storage is read once: tensors
  /// share memory where they do in the file, so writing to one writes to those tied to it.
  absl::StatusOr<NamedTensors> tensors(std::string_view prefix = {}) const;

 private:
  struct Contents;
  explicit TorchFile(std::shared_ptr<const Contents> contents) : contents_(std::move(contents)) {}
  const TorchEntry* find(std::string_view name) const;
  absl::StatusOr<at::Tensor> read_storage(int64_t storage) const;
  absl::StatusOr<at::Tensor> make_tensor(const TorchEntry& entry, const at::Tensor& storage) const;
  std::shared_ptr<const Contents> contents_;
};

/// Appends tensors to a new file, as torch.save writes an OrderedDict of them; Python reads it by
/// torch.load(path, weights_only=True). The bytes depend on names, values and order alone. Tensors that are the same
/// view of the same memory (tied weights) are written once and are tied again in Python; others are written as what
/// they show, contiguous. A tensor that is on a device or not contiguous is copied, one at a time. Synchronises with
/// the device of each such tensor.
///
/// kInvalidArgument names a tensor with no data in memory (undefined, meta, sparse, quantised), of a dtype that the
/// format lacks, a name that stands twice or is no UTF-8.
absl::Status write_torch_file(WritableFile& file, const NamedTensors& tensors);

/// Writes a file atomically (write_file_atomically): a file of that name is replaced as a whole or left as it was.
absl::Status save_torch_file(const Fs& fs, const std::string& path, const NamedTensors& tensors);

}  // namespace trainkit
