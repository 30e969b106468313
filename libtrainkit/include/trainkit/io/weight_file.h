#pragma once
/// Reads weights from safetensors or PyTorch files. The content decides the format, not the name.

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
