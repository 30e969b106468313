#pragma once
/// Values and tensors that a trainer stores next to its weights (App::save). Loading checks types, sizes and ranges;
/// its errors name the file and the key.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "trainkit/core/error.h"

namespace trainkit {

namespace detail {
template <class... T>
struct StoredTypes {
  using Value = std::variant<T...>;
  using Target = std::variant<T*...>;
};
using Stored =
    StoredTypes<at::Tensor, int64_t, std::string, std::vector<int64_t>, std::vector<std::string>,
                std::vector<std::pair<int64_t, std::string>>, std::vector<std::pair<std::string, std::string>>>;
}  // namespace detail

/// Values by key: tensors, integers, texts, and lists of integers, texts or pairs.
using StoredValues = std::map<std::string, detail::Stored::Value>;

/// A value to load.
struct StoredField {
  std::string key;
  /// The variable that gets the value; its type is required.
  detail::Stored::Target target;
  /// Minimum number of entries of a list.
  int64_t min_size = 0;
  /// Range of an integer, or of each integer of a list, and the problem of one outside.
  int64_t min = std::numeric_limits<int64_t>::min(), max = std::numeric_limits<int64_t>::max();
  std::string problem = "is out of range";
  /// Sizes of a tensor, separated by blanks: "classes 64". A size with a name is the same in all tensors.
  std::string shape = {};
  at::ScalarType dtype = at::kFloat;
  /// The file has all fields of a group, or none, and their targets stay as they are. Empty: required.
  std::string group = {};
};

/// Writes a file atomically: safetensors if a value is a tensor, with the other values as its metadata, each in JSON;
/// else one line of JSON. A pair is a list of two there, and the value with the key "" is the whole file. Replaces
/// bytes that are not UTF-8. Errors: those of save_safetensors, exit code 6.
///
///   save_values(run.output_dir + "/classes.json", {{"labels", labels}, {"features", 64}});
///   load_values(path, {{.key = "labels", .target = &labels}, {.key = "features", .target = &features, .min = 1}});
absl::Status save_values(const std::string& path, const StoredValues& values);

/// Loads fields of a file of save_values; others are ignored. JSON is strict: a duplicate key, a NUL byte and more than
/// 16 levels are errors. No size of a tensor may be 0, and none of its values infinite or NaN. Errors: those of
/// SafetensorsFile; `blame` with the file, the key and the problem. Some targets may have changed then.
absl::Status load_values(const std::string& path, const std::vector<StoredField>& fields,
                         const Error& blame = {.exit_code = ExitCode::kWeights, .id = "run.file"});

}  // namespace trainkit
