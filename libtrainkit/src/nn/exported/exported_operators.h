#pragma once
// The operators that an exported model calls.

#include <ATen/core/dispatch/Dispatcher.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace trainkit::detail {

/// An operator of this LibTorch, and its schema in the LibTorch that wrote the file.
struct ExportedOperator {
  c10::OperatorHandle handle;
  c10::FunctionSchema written;

  /// "aten::mul.Tensor".
  std::string name() const { return c10::toString(handle.operator_name()); }
};

/// Finds the operators of a description's list. Those of ATen that read no file and replace no storage are allowed, and
/// those in `allowed`. Throws c10::ValueError that names an operator which is missing or not allowed.
std::vector<ExportedOperator> find_operators(const nlohmann::json& list, const std::vector<std::string>& allowed);

/// Throws c10::ValueError if this LibTorch's operator means something else by the arguments `given`, or needs more.
void check_arguments(const ExportedOperator& op, const nlohmann::json& given);

}  // namespace trainkit::detail
