#pragma once
/// Invariants of every accepted PyTorch file.

#include <algorithm>
#include <set>

#include "target.h"
#include "trainkit/io/weight_file.h"

namespace trainkit::fuzz {

/// Reads any file; an accepted file gives the same when written and read again.
inline void check_torch_file(const std::string& path) {
  constexpr int64_t kMostBytes = 1 << 20;  // views with strides of 0 are larger than the file
  const auto file = TorchFile::open(path);
  if (!file.ok()) return require_named(file.status(), {"weights."});
  if (const auto prefix = file->state_dict_prefix(); !prefix.ok()) require_named(prefix.status(), {"weights."});
  int64_t bytes = 0;
  std::set<std::string> names;
  for (const TorchEntry& entry : file->entries()) {
    bytes = std::min(kMostBytes + 1, bytes + std::min(kMostBytes + 1, entry.bytes));
    require(entry.bytes >= 0 && entry.storage_offset >= 0, "sizes are not negative");
    names.insert(entry.name);
  }
  const auto tensors = file->tensors();
  if (!tensors.ok()) return require_named(tensors.status(), {"weights.digest"});
  require(tensors->size() == file->entries().size(), "every tensor is read");
  for (size_t i = 0; i < tensors->size(); ++i) {
    const TorchEntry& entry = file->entries()[i];
    require((*tensors)[i].first == entry.name && (*tensors)[i].second.sizes() == entry.shape,
            "names and sizes equal the listed ones");
    if (entry.bytes > 0 && bytes <= kMostBytes)
      require(same_bits((*tensors)[i].second, (*tensors)[i].second.clone()), "bits");
  }
  if (bytes > kMostBytes) return;
  const std::string copy = folder() + "/again.pt";
  const absl::Status saved = save_torch_file(Fs::posix(), copy, *tensors);
  if (names.size() < tensors->size())
    return require(saved.code() == absl::StatusCode::kInvalidArgument, "a name twice");
  require(saved.ok(), "a value that was read can be written: " + saved.ToString());
  const auto again = TorchFile::open(copy);
  require(again.ok(), "a written file can be read: " + again.status().ToString());
  const auto others = again->tensors();
  require(others.ok() && others->size() == tensors->size(), "every tensor is read back");
  for (size_t i = 0; i < tensors->size(); ++i) {
    require((*others)[i].first == (*tensors)[i].first, "a name is read back");
    require(same_bits((*others)[i].second, (*tensors)[i].second), "a tensor is read back");
  }
}

}  // namespace trainkit::fuzz
