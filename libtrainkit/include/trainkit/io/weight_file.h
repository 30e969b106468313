#pragma once
/// Reads weights from safetensors or PyTorch files (WeightFile): the content decides the format, not the name. Reads
/// and writes PyTorch files, `torch.save(state_dict)` (TorchFile, save_torch_file): zip archives (PyTorch 1.6 and
/// later) and the older files that begin with a pickle (reading only).
///
/// Nothing in a file can run code: our own unpickler builds only numbers, text, containers and tensors, and calls
/// nothing. Source: torch/serialization.py and torch/_weights_only_unpickler.py of PyTorch 2.11.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "trainkit/core/fs.h"
#include "trainkit/io/safetensors.h"

namespace trainkit {

// ---- PyTorch files

/// A tensor of a file.
struct TorchEntry {
  /// Keys and positions from the outermost container to the tensor, joined by dots: "fc.weight",
  /// "state_dict.module.fc.weight", "optimizer.state.0.exp_avg", "2". Empty if the file is a single tensor.
  std::string name;
  /// PyTorch's name of the dtype: "float32", "bfloat16", "bool", ...
  std::string dtype;
  std::vector<int64_t> shape;
  /// Strides in elements.
  std::vector<int64_t> strides;
  /// Number of elements times the element size. Tensors that share a storage are each counted in full.
  int64_t bytes = 0;
  /// Index of the storage. Tensors with the same index share memory, for example tied weights.
  int64_t storage = 0;
  /// Offset of the first element in the storage, in elements.
  int64_t storage_offset = 0;
};

/// A PyTorch file opened for reading.
///
///   auto file = TorchFile::open("model.pt").value();
///   NamedTensors weights = file.tensors(file.state_dict_prefix().value()).value();
///
/// open() reads and checks the archive's directory and the whole pickle: every listed tensor lies within its storage,
/// every storage within the file. It allows the pickle opcodes that build data (protocols 2 to 5) and these names:
/// collections.OrderedDict and its like, torch.Size, torch.device, torch's storages and dtypes, and the functions that
/// rebuild tensors and parameters, also those with attributes (which are ignored). That covers a state dict saved by
/// torch.save, or a checkpoint of dicts, lists, numbers and tensors. NumPy values, argparse.Namespace and other objects
/// that checkpoints hold next to weights are listed in values() by their class, and not read.
///
/// Everything else is an error with its name and offset: whole models, sparse and quantised tensors, TorchScript, tar
/// files of PyTorch 0.1. A zip must have the layout of torch.save: stored (uncompressed) entries without gaps.
///
/// Data is read on demand with pread into new memory, not mapped, for the reasons given at SafetensorsFile. The CRC of
/// a zip's storage is checked then. Device information in the file is ignored: all tensors are on the CPU. Thread-safe
/// for concurrent reads.
class TorchFile {
 public:
  /// Opens and checks a file. Errors have exit code 5 (kNotFound if the file does not exist).
  static absl::StatusOr<TorchFile> open(const std::string& path, const Fs& fs = Fs::posix());
  static absl::StatusOr<TorchFile> open(ReadableFile file);

  /// Tensors in file order.
  const std::vector<TorchEntry>& entries() const;
  std::vector<std::string> names() const;
  bool contains(std::string_view name) const;
  /// Values other than tensors, as text with the same naming scheme: {"epoch", "3"}, {"best_prec1", "91.78"}. At most
  /// the first 65,536.
  const std::vector<std::pair<std::string, std::string>>& values() const;
  /// Whether the file has the format used before PyTorch 1.6.
  bool is_legacy() const;
  const std::string& path() const;

  /// Returns the name of the container that holds the model's weights: the only container with tensors; else the first
  /// existing one of "state_dict", "model_state_dict", "model", "model_state", "model_weights", "net", "network",
  /// "weights", "module"; else "" if the outermost one has tensors; else the only one that is not part of an optimizer,
  /// a schedule, a scaler or the state of generators ("optimizer", "lr_scheduler", ...).
  ///
  /// kNotFound if there is no tensor; kInvalidArgument, with a list, if there are several containers with other names.
  absl::StatusOr<std::string> state_dict_prefix() const;

  /// Reads a tensor with the sizes and strides of the file into memory of its own. Reads the whole storage of the
  /// tensor.
  ///
  /// kNotFound with the nearest name; kResourceExhausted if out of memory; kDataLoss if the file was truncated since
  /// open(); weights.digest if a CRC is wrong.
  absl::StatusOr<at::Tensor> tensor(std::string_view name) const;

  /// Reads all tensors below a container ("" is the outermost), named relative to it. Each storage is read once:
  /// tensors that share memory in the file share it here, so tied weights stay tied.
  NamedTensorsOr tensors(std::string_view prefix = {}) const;

 private:
  friend class detail::StoredTensors;
  friend class WeightFile;
  struct Contents;
  explicit TorchFile(std::shared_ptr<const Contents> contents) : contents_(std::move(contents)) {}
  const TorchEntry* find(std::string_view name) const;
  absl::StatusOr<at::Tensor> read_storage(int64_t storage) const;
  absl::Status verify_storage(int64_t storage, const at::Tensor& buffer) const;
  bool is_plain(size_t entry) const;
  absl::Status read_values(const TorchEntry& entry, int64_t offset, void* data, size_t bytes) const;
  absl::Status no_tensor_below(std::string_view prefix) const;
  absl::StatusOr<at::Tensor> make_tensor(const TorchEntry& entry, const at::Tensor& storage) const;
  std::shared_ptr<const Contents> contents_;
};

/// Writes tensors in the format of torch.save for an OrderedDict. Python loads the file with torch.load(path,
/// weights_only=True). The bytes depend only on names, values and order. An existing file is replaced completely or
/// stays unchanged (write_file_atomically).
///
/// Tensors that are the same view of the same memory (tied weights) are written once and are tied again in Python.
/// Other views are written as contiguous copies. A tensor on a device or not contiguous is copied first, one at a time.
/// Synchronises with the device of each such tensor.
///
/// kInvalidArgument names a tensor without data in memory (undefined, meta, sparse, quantised), with a dtype that the
/// format lacks, or with a name that is a duplicate or not UTF-8. It also refuses names and counts that TorchFile::open
/// rejects: control characters in a key, a name over 65,535 bytes, more than 64 dimensions.
absl::Status save_torch_file(const Fs& fs, const std::string& path, const NamedTensors& tensors);

// ---- Writes PyTorch files with nested values: checkpoints of numbers, lists and dicts, not only flat dicts of
// tensors.

/// A Python value: None, bool, int, float, str, a tensor, or a list, tuple or dict of values.
///
///   TorchValue checkpoint = TorchValue::dict();
///   checkpoint.set("epoch", 3);
///   checkpoint.set("model", TorchValue::dict()).set("fc.weight", weight);
///   save_torch_value(Fs::posix(), "checkpoint.pt", checkpoint);
class TorchValue {
 public:
  enum class Kind { kNone, kBool, kInt, kFloat, kText, kTensor, kList, kTuple, kDict };

  TorchValue() = default;
  TorchValue(bool value) : kind_(Kind::kBool), plain_(value) {}
  TorchValue(int value) : TorchValue(int64_t{value}) {}
  TorchValue(int64_t value) : kind_(Kind::kInt), plain_(value) {}
  TorchValue(double value) : kind_(Kind::kFloat), plain_(value) {}
  TorchValue(std::string value) : kind_(Kind::kText), plain_(std::move(value)) {}
  TorchValue(const char* value) : TorchValue(std::string(value)) {}
  TorchValue(at::Tensor value) : kind_(Kind::kTensor), plain_(std::move(value)) {}
  static TorchValue list(std::vector<TorchValue> items = {}) { return {Kind::kList, std::move(items)}; }
  static TorchValue tuple(std::vector<TorchValue> items) { return {Kind::kTuple, std::move(items)}; }
  static TorchValue dict() { return {Kind::kDict, {}}; }

  /// Appends to a list. Returns a reference to the added value, valid until the next one is added. Throws c10::Error
  /// for any other kind.
  TorchValue& add(TorchValue value);
  /// Adds an entry to a dict. Entries keep their order of insertion. Returns and throws as add().
  TorchValue& set(std::string key, TorchValue value);

  Kind kind() const { return kind_; }
  /// Value of a kind other than list, tuple and dict; the alternative follows kind().
  const std::variant<std::monostate, bool, int64_t, double, std::string, at::Tensor>& plain() const { return plain_; }
  /// Items of a list, a tuple or a dict.
  const std::vector<TorchValue>& items() const { return items_; }
  /// Keys of a dict, one for each of items().
  const std::vector<std::string>& keys() const { return keys_; }

 private:
  TorchValue(Kind kind, std::vector<TorchValue> items) : kind_(kind), items_(std::move(items)) {}
  Kind kind_ = Kind::kNone;
  std::variant<std::monostate, bool, int64_t, double, std::string, at::Tensor> plain_;
  std::vector<TorchValue> items_;
  std::vector<std::string> keys_;
};

/// Writes `value` atomically (write_file_atomically) in the format of torch.save. Python loads it with torch.load(path,
/// weights_only=True). Tensors follow the rules of save_torch_file.
///
/// kInvalidArgument names the keys and positions of a value that cannot be written: see save_torch_file; also nesting
/// over 60 levels.
absl::Status save_torch_value(const Fs& fs, const std::string& path, const TorchValue& value);

// ---- Files of any format

struct WeightEntry {
  std::string name;
  /// PyTorch's name of the dtype, "float32". The name in the file ("F4") if LibTorch has no such type.
  std::string dtype;
  std::vector<int64_t> shape;
  int64_t bytes = 0;
};

/// A weight file opened for reading and checked like SafetensorsFile and TorchFile. Also several files listed in a
/// Hugging Face index next to them (model.safetensors.index.json, pytorch_model.bin.index.json).
///
///   auto file = WeightFile::open("pytorch_model.bin").value();
///   NamedTensors weights = file.tensors(file.state_dict_prefix().value()).value();
class WeightFile {
 public:
  /// Opens and checks a file, or an index and the files it lists. These must be in the folder of the index, and each
  /// tensor must be in the file named by the index and in no other. Errors have exit code 5 (kNotFound if a file does
  /// not exist).
  static absl::StatusOr<WeightFile> open(const std::string& path, const Fs& fs = Fs::posix());

  /// Returns "safetensors", "PyTorch zip" or "PyTorch legacy". For several files, the format of the first.
  std::string_view format() const;
  /// Path of the file or the index.
  const std::string& path() const { return path_; }
  const std::vector<WeightEntry>& entries() const { return entries_; }
  /// Values other than tensors: the metadata of a safetensors file, or TorchFile::values().
  const std::vector<std::pair<std::string, std::string>>& values() const { return values_; }

  /// Returns TorchFile::state_dict_prefix(), or "" for safetensors.
  absl::StatusOr<std::string> state_dict_prefix() const;
  /// Reads all tensors whose names begin with `prefix` and a dot, and removes both from the names. Reads all tensors if
  /// `prefix` is empty.
  NamedTensorsOr tensors(std::string_view prefix = {}) const;
  /// Names what load_weights leaves out: "w.pt also has epoch, optimizer, which were left out". Empty if it leaves out
  /// nothing or would not find the weights. Reads no tensor.
  std::string left_out_note() const;

 private:
  friend class detail::StoredTensors;
  using Part = std::variant<SafetensorsFile, TorchFile>;
  WeightFile(std::string path, std::vector<Part> parts);
  static absl::StatusOr<Part> open_part(ReadableFile file);
  static absl::StatusOr<WeightFile> open_index(const ReadableFile& index, const Fs& fs);
  absl::Status no_tensor_below(std::string_view prefix) const;

  std::string path_;
  std::vector<Part> parts_;
  std::vector<WeightEntry> entries_;
  std::vector<std::pair<std::string, std::string>> values_;
};

}  // namespace trainkit
