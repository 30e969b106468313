#include "nn/exported/exported_operators.h"

#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace trainkit::detail {
namespace {

/// Operators of ATen that read files, or give a tensor other memory than its own.
constexpr std::array<std::string_view, 8> kRefused = {
    "aten::from_file",       "aten::set_",          "aten::set_data", "aten::resize_", "aten::resize_as_",
    "aten::_resize_output_", "aten::record_stream", "aten::data"};

bool is_allowed(const std::string& name, const std::vector<std::string>& allowed) {
  if (std::find(allowed.begin(), allowed.end(), name) != allowed.end()) return true;
  if (!name.starts_with("aten::")) return false;
  return std::find(kRefused.begin(), kRefused.end(), name) == kRefused.end();
}

const c10::Argument* argument_named(const c10::FunctionSchema& schema, const std::string& name) {
  const auto found = std::find_if(schema.arguments().begin(), schema.arguments().end(),
                                  [&](const c10::Argument& one) { return one.name() == name; });
  return found == schema.arguments().end() ? nullptr : &*found;
}

}  // namespace

std::vector<ExportedOperator> find_operators(const nlohmann::json& list, const std::vector<std::string>& allowed) {
  std::vector<ExportedOperator> operators;
  for (const auto& entry : list) {
    const auto name = entry.at("name").get<std::string>(), overload = entry.at("overload").get<std::string>();
    TORCH_CHECK_VALUE(is_allowed(name, allowed), "calls ", name, ", which is not allowed",
                      name.starts_with("aten::") ? "" : "; a program that registers it names it in the options");
    const auto found = c10::Dispatcher::singleton().findSchema({name, overload});
    TORCH_CHECK_VALUE(found.has_value(), "calls ", name, overload.empty() ? "" : ".", overload,
                      ", which this LibTorch does not have");
    c10::FunctionSchema written = torch::jit::parseSchema(entry.at("schema").get<std::string>());
    operators.push_back({*found, std::move(written)});
  }
  return operators;
}

void check_arguments(const ExportedOperator& op, const nlohmann::json& given) {
  const c10::FunctionSchema& schema = op.handle.schema();
  for (const auto& [name, value] : given.items()) {
    const c10::Argument* now = argument_named(schema, name);
    const c10::Argument* then = argument_named(op.written, name);
    const bool is_same = now && then && *now->real_type() == *then->real_type();
    TORCH_CHECK_VALUE(is_same, op.name(), " has changed: its argument ", name,
                      " is not that of the LibTorch that wrote "
                      "the file");
  }
  for (const c10::Argument& argument : schema.arguments()) {
    TORCH_CHECK_VALUE(given.contains(argument.name()) || argument.default_value().has_value(), op.name(),
                      " needs an argument ", argument.name());
  }
}

}  // namespace trainkit::detail
