#pragma once
/// What is wrong with a file of arrays.

#include <string>

#include "trainkit/arrays/array_source.h"

namespace trainkit::test {

/// Returns the first error of opening a file or reading its arrays.
inline absl::Status first_error(const std::string& path) {
  const auto source = ArraySource::open(path);
  if (!source.ok()) return source.status();
  for (const ArrayInfo& array : (*source)->arrays()) {
    if (const auto tensor = (*source)->read(array.name); !tensor.ok()) return tensor.status();
  }
  return absl::OkStatus();
}

}  // namespace trainkit::test
