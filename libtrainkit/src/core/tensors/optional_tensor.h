#pragma once
/// Optional tensor arguments of autograd::Function, which accepts an empty optional but no undefined tensor.

#include <ATen/core/Tensor.h>

#include <optional>

namespace trainkit::detail {

using OptionalTensor = std::optional<at::Tensor>;

inline OptionalTensor optional(const at::Tensor& tensor) {
  return tensor.defined() ? OptionalTensor(tensor) : std::nullopt;
}

}  // namespace trainkit::detail
