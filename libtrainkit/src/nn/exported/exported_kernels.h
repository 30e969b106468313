#pragma once
// The library's own kernels in place of operators of an exported graph.

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/ArrayRef.h>

#include <vector>

#include "nn/exported/exported_values.h"

namespace trainkit::detail {

/// Computes a call from its arguments in the order of the schema. Returns an undefined tensor if their values need the
/// operator itself.
using ExportedKernel = at::Tensor (*)(c10::ArrayRef<c10::IValue> arguments);

/// The kernel for calls of an operator with these arguments, or nullptr.
ExportedKernel find_kernel(const c10::OperatorHandle& op, const std::vector<ExportedValue>& arguments);

}  // namespace trainkit::detail
