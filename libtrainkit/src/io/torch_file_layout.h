#pragma once
/// Where the parts of a PyTorch file lie: the same for both of its formats.

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "io/torch_dtypes.h"
#include "trainkit/core/fs.h"
#include "trainkit/io/torch_file.h"

namespace trainkit::detail {

/// The bytes of a storage.
struct StoragePlace {
  std::string name = {};  ///< For errors: "data/0".
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
  /// Of each entry: a lazy conjugate or negative of what the storage holds.
  std::vector<std::pair<bool, bool>> conjugated_negated = {};
  std::vector<std::pair<std::string, std::string>> values = {};
  std::vector<std::string> containers = {};

  /// A truth value in an untyped storage is not yet known to be 0 or 1.
  bool is_unsure_bool(size_t entry) const {
    return entries[entry].dtype == "bool" && !storages[static_cast<size_t>(entries[entry].storage)].dtype;
  }
  /// Whether the entry is computed from its storage and not a view of it.
  bool is_computed(size_t entry) const {
    return conjugated_negated[entry] != std::pair(false, false) || is_unsure_bool(entry);
  }
};

/// Reads and checks all but the tensors' bytes.
absl::StatusOr<TorchLayout> read_torch_layout(const ReadableFile& file);

}  // namespace trainkit::detail
