#include "trainkit/data/array_folder.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <system_error>

#include "trainkit/arrays/array_file.h"
#include "trainkit/core/data_error.h"
#include "trainkit/core/status.h"
#include "trainkit/io/folder_files.h"

namespace trainkit {
namespace {

namespace fs = std::filesystem;

/// Returns the names of the folders in `folder`, in ascending order.
std::vector<std::string> folders_in(const std::string& folder, std::error_code& error) {
  std::vector<std::string> names;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    std::error_code ignored;
    if (entry->is_directory(ignored) && !name.starts_with('.')) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const ArrayFolder>> ArrayFolder::open(const std::string& root) {
  std::shared_ptr<ArrayFolder> folder(new ArrayFolder(root));
  std::error_code error;
  for (const std::string& name : folders_in(root, error)) {
    const auto files = list_files(root + "/" + name, {".npy"}, error).names;
    if (files.empty()) continue;
    for (const std::string& file : files) {
      folder->names_.push_back(name + "/" + file);
      folder->labels_.push_back(std::ssize(folder->classes_));
    }
    folder->classes_.push_back(name);
  }
  if (error) return data_error("data.folder", {.file = root}, "cannot be read: " + error.message());
  if (folder->names_.empty()) {
    return data_error("data.folder", {.file = root}, "no arrays", "", "a folder per class with .npy files");
  }
  TRAINKIT_ASSIGN_OR_RETURN(const at::Tensor first, read_npy(folder->describe(0)));
  folder->fields_ = {{"x", first.scalar_type(), first.sizes().vec()}, {"y", at::kLong, {}}};
  return folder;
}

void ArrayFolder::get(const RowKey& key, const BatchView& out, int64_t at) const {
  const absl::StatusOr<at::Tensor> array = read_npy(describe(key.index));
  if (!array.ok()) throw absl::BadStatusOrAccess(array.status());
  const FieldSpec own{"x", array->scalar_type(), array->sizes().vec()};
  if (own != fields_[0]) {
    std::ostringstream got, expected;
    got << own;
    expected << fields_[0];
    throw absl::BadStatusOrAccess(data_error("data.array", {.file = describe(key.index)},
                                             "another shape or dtype than the first array", got.str(), expected.str()));
  }
  const at::Tensor values = array->contiguous();
  std::memcpy(out.row(0, at), values.const_data_ptr(), out.row_bytes(0));
  *out.row<int64_t>(1, at) = label(key.index);
}

}  // namespace trainkit
