#pragma once
/// The dtype in which gradients are sent.

#include <ATen/core/Tensor.h>

#include <optional>

#include "trainkit/distributed/replicator_options.h"

namespace trainkit::detail {

/// Returns the dtype in which `gradients` are sent; nullopt: their own.
inline std::optional<at::ScalarType> wire_type(GradientCompression compression, const at::Tensor& gradients) {
  if (compression == GradientCompression::kNone || gradients.element_size() <= 2) return std::nullopt;
  return compression == GradientCompression::kFp16 ? at::kHalf : at::kBFloat16;
}

}  // namespace trainkit::detail
