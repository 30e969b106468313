#pragma once
/// Batches of two fields.

#include <memory>
#include <utility>
#include <vector>

#include "trainkit/data/batch.h"

namespace trainkit::test {

/// A batch with the fields "x" and "y", (N, ...) each.
inline Batch batch_of(const at::Tensor& x, const at::Tensor& y) {
  auto fields = std::make_shared<std::vector<FieldSpec>>();
  fields->push_back({"x", x.scalar_type(), x.sizes().slice(1).vec()});
  fields->push_back({"y", y.scalar_type(), y.sizes().slice(1).vec()});
  return {std::move(fields), {x, y}};
}

}  // namespace trainkit::test
