#pragma once
/// Invariants of every accepted file with named arrays.

#include <algorithm>

#include "target.h"
#include "trainkit/arrays/array_source.h"

namespace trainkit::fuzz {

/// Opens any file; sizes and dtypes are the listed ones, and rows of an array equal those of the whole.
inline void check_source(const std::string& path) {
  const auto source = ArraySource::open(path);
  if (!source.ok()) return require_named(source.status(), {"data."});
  for (const ArrayInfo& array : (*source)->arrays()) {
    const auto tensor = (*source)->read(array.name);
    if (!tensor.ok()) {
      require_named(tensor.status(), {"data."});
      continue;
    }
    require(array.name.empty() || (tensor->sizes() == array.sizes && tensor->scalar_type() == array.dtype),
            "sizes and dtype equal the listed ones");
    if (tensor->dim() == 0 || tensor->size(0) == 0) continue;
    const int64_t begin = tensor->size(0) / 3, count = std::min<int64_t>(2, tensor->size(0) - begin);
    const auto rows = (*source)->read_rows(array.name, begin, count);
    require(rows.ok() && same_bits(*rows, tensor->narrow(0, begin, count)), "rows equal those of the whole");
  }
  (void)(*source)->numbers("wavelength");
}

}  // namespace trainkit::fuzz
