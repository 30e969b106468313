#pragma once
/// Flattens a pickle's nested containers into names joined by dots.

#include <absl/status/statusor.h>

#include <string>
#include <utility>
#include <vector>

#include "io/torch/unpickler.h"

namespace trainkit::detail {

struct PickleNames {
  /// Values of kind kTensor and kStorage.
  std::vector<std::pair<std::string, PickleValue>> tensors;
  /// All other values except containers, as text.
  std::vector<std::pair<std::string, std::string>> values;
  /// Names of the containers with a tensor as a direct child, in file order.
  std::vector<std::string> containers;
};

/// Names all values in `root`. An error gives the location of: a key that is neither text nor an integer, a duplicate
/// name, containers nested deeper than 64 (also a container that contains itself), or too many names.
absl::StatusOr<PickleNames> name_values(const Unpickler& pickle, const PickleValue& root, const std::string& path);

}  // namespace trainkit::detail
