#pragma once
// Functions of Python on the sizes of an exported graph.

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <string>

namespace trainkit::detail {

/// A function of Python's module `operator` ("add", "floordiv", "getitem", "lt", ...), or max, min, int, float, not,
/// ite. Integers stay integers; floordiv and mod round towards minus infinity.
struct PythonFunction {
  std::string name;
  size_t count = 0;  // of its arguments
  c10::IValue (*function)(c10::ArrayRef<c10::IValue> arguments) = nullptr;

  /// Throws c10::ValueError for another number or type of arguments, for a result that does not fit into int64, and for
  /// a division by 0.
  c10::IValue operator()(c10::ArrayRef<c10::IValue> arguments) const;
};

/// The function of this name, or nullptr.
const PythonFunction* find_python_function(const std::string& name);

}  // namespace trainkit::detail
