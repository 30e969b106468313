#pragma once
// Functions of Python on the sizes of an exported graph.

#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

namespace trainkit::detail {

/// Whether there is a function of this name.
bool is_python_function(const std::string& name);

/// Calls a function of Python's module `operator` ("add", "floordiv", "getitem", "lt", ...), or max, min, int, float,
/// not, ite. Integers stay integers; floordiv and mod round towards minus infinity. Throws c10::ValueError for another
/// number or type of arguments, for a result that does not fit into int64, and for a division by 0.
c10::IValue call_python_function(const std::string& name, const std::vector<c10::IValue>& arguments);

}  // namespace trainkit::detail
