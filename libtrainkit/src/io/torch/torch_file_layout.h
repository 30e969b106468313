#pragma once
/// Locates the parts of a PyTorch file, for both of its formats.

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "io/weights/torch_dtypes.h"
#include "trainkit/core/fs.h"
#include "trainkit/io/weight_file.h"

namespace trainkit::detail {

/// Location of a storage in the file.
struct StoragePlace {
  std::string name = {};  ///< Name in errors: "data/0".
  int64_t offset = 0;
  int64_t bytes = 0;
  std::optional<uint32_t> crc = {};
  const TorchDtype* dtype = nullptr;  // nullptr: untyped
};

struct TorchLayout {
  bool is_legacy = false;
  bool is_big_endian = false;
  std::vector<StoragePlace> storages = {};
  std::vector<TorchEntry> entries = {};
  /// For each entry, whether it is a lazy conjugate and a lazy negative of its storage.
  std::vector<std::pair<bool, bool>> conjugated_negated = {};
  std::vector<std::pair<std::string, std::string>> values = {};
  std::vector<std::string> containers = {};

  /// Whether the entry is a bool in an untyped storage, whose bytes are not yet known to be 0 or 1.
  bool is_unsure_bool(size_t entry) const {
    return entries[entry].dtype == "bool" && !storages[static_cast<size_t>(entries[entry].storage)].dtype;
  }
  /// Whether the entry is computed from its storage instead of being a view of it.
  bool is_computed(size_t entry) const {
    return conjugated_negated[entry] != std::pair(false, false) || is_unsure_bool(entry);
  }
};

/// Reads and checks everything except the tensors' bytes.
absl::StatusOr<TorchLayout> read_torch_layout(const ReadableFile& file);

}  // namespace trainkit::detail
