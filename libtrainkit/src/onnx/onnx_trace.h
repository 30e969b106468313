#pragma once
/// Records the operations of a function on tensors as plain data, for the export to ONNX.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

namespace trainkit::detail {

/// A size that depends on the number of rows.
inline constexpr int64_t kAnySize = -1;

/// Position in Trace::values.
struct ValueId {
  size_t index = 0;
};

struct TracedValue {
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes = {};
  /// Defined for a tensor that no traced operation made: a parameter, a buffer or a constant.
  at::Tensor constant = {};
};

/// A number, or a list of numbers, that depends on the number of rows.
struct Varying {};

/// An argument of an operation; monostate is None.
using TracedArgument = std::variant<std::monostate, ValueId, std::vector<ValueId>, bool, int64_t, double, std::string,
                                    std::vector<int64_t>, Varying>;

struct TracedCall {
  /// Name of the operation, without "aten::" and without the underscore of its in-place form.
  std::string name;
  /// Arguments by the names in the operation's schema.
  std::map<std::string, TracedArgument> arguments = {};
  std::vector<ValueId> results = {};
};

/// The operations of a function in their order.
struct Trace {
  std::vector<TracedValue> values = {};
  std::vector<ValueId> inputs = {}, outputs = {};
  std::vector<TracedCall> calls = {};
};

/// Reason why a computation cannot be written as ONNX.
class CannotExport : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

using TensorFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

/// Calls `function` twice, with two and with three rows of other values, and returns what it computed for any number of
/// rows. Rows are the first dimension of every input; only the first row of `examples` is read. Uses LibTorch's tracer,
/// so that computations outside of LibTorch's operations are not seen.
///
/// Throws CannotExport if the operations, or tensors that were not made by operations, differ between the calls for
/// another reason than the number of rows. Exceptions of `function` propagate.
Trace trace_function(const TensorFunction& function, const std::vector<at::Tensor>& examples);

}  // namespace trainkit::detail
