#pragma once
/// From a pickle's nested containers to names with dots.

#include <absl/status/statusor.h>

#include <string>
#include <utility>
#include <vector>

#include "io/unpickler.h"

namespace trainkit::detail {

struct PickleNames {
  /// Values of kind kTensor and kStorage.
  std::vector<std::pair<std::string, PickleValue>> tensors;
  /// Everything else but containers, as text.
  std::vector<std::pair<std::string, std::string>> values;
  /// Names of the containers that directly hold a tensor, in the order of the file.
  std::vector<std::string> containers;
};

/// Names all that `root` holds. Errors name the place: keys that are neither text nor integer, names that stand twice,
/// containers nested deeper than 64 (one that holds itself, too), more names than a limit.
absl::StatusOr<PickleNames> name_values(const Unpickler& pickle, const PickleValue& root, const std::string& path);

}  // namespace trainkit::detail
