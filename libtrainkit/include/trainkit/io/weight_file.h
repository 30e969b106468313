#pragma once
/// A file of weights of whatever format: safetensors or PyTorch's, told apart by content and not by name.

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "trainkit/core/fs.h"
#include "trainkit/io/safetensors.h"
#include "trainkit/io/torch_file.h"

namespace trainkit {

struct WeightEntry {
  std::string name;
  /// PyTorch's name, "float32"; as in the file ("F4") for what LibTorch has no type for.
  std::string dtype;
  std::vector<int64_t> shape;
  int64_t bytes = 0;
};

/// A file of weights that was opened for reading, and checked as SafetensorsFile and TorchFile do; or several, by the
/// index that Hugging Face's libraries write beside them (model.safetensors.index.json, pytorch_model.bin.index.json).
///
///   auto file = WeightFile::open("pytorch_model.bin").value();
///   NamedTensors weights = file.tensors(file.state_dict_prefix().value()).value();
class WeightFile {
 public:
  /// Opens and checks a file, and those that an index names, which must lie beside it: each tensor in the one that the
  /// index says and in no other. Errors are of exit code 5 (kNotFound if there is no such file).
  static absl::StatusOr<WeightFile> open(const std::string& path, const Fs& fs = Fs::posix());

  /// "safetensors", "PyTorch zip" or "PyTorch legacy"; of several files that of the first.
  std::string_view format() const;
  /// The file or the index.
  const std::string& path() const { return path_; }
  const std::vector<WeightEntry>& entries() const { return entries_; }
  /// What is not a tensor: the metadata of a safetensors file, TorchFile::values().
  const std::vector<std::pair<std::string, std::string>>& values() const { return values_; }

  /// TorchFile::state_dict_prefix(); "" for safetensors.
  absl::StatusOr<std::string> state_dict_prefix() const;
  /// All tensors whose names begin with `prefix` and a dot, without these; all if it is empty.
  absl::StatusOr<NamedTensors> tensors(std::string_view prefix = {}) const;

 private:
  using Part = std::variant<SafetensorsFile, TorchFile>;
  WeightFile(std::string path, std::vector<Part> parts);
  static absl::StatusOr<Part> open_part(ReadableFile file);
  static absl::StatusOr<WeightFile> open_index(const ReadableFile& index, const Fs& fs);

  std::string path_;
  std::vector<Part> parts_;
  std::vector<WeightEntry> entries_;
  std::vector<std::pair<std::string, std::string>> values_;
};

}  // namespace trainkit
