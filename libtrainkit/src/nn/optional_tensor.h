#pragma once
/// Arguments of an autograd Function that may be absent: an undefined tensor is not accepted, an empty optional is.

#include <ATen/core/Tensor.h>

#include <optional>

namespace trainkit::detail {

using OptionalTensor = std::optional<at::Tensor>;

inline OptionalTensor optional(const at::Tensor& tensor) {
  return tensor.defined() ? OptionalTensor(tensor) : std::nullopt;
}

}  // namespace trainkit::detail
