#include "onnx/onnx_builder.h"

#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace trainkit::detail {

std::string OnnxBuilder::fresh(const std::string& hint) { return fmt::format("{}_{}", hint, count_++); }

std::vector<std::string> OnnxBuilder::node_with_outputs(const std::string& type, std::vector<std::string> inputs,
                                                        size_t outputs, Attributes attributes) {
  OnnxNode node{.type = type, .inputs = std::move(inputs), .attributes = std::move(attributes)};
  for (size_t i = 0; i < outputs; ++i) node.outputs.push_back(fresh(type));
  graph_.nodes.push_back(node);
  return node.outputs;
}

std::string OnnxBuilder::node(const std::string& type, std::vector<std::string> inputs, Attributes attributes) {
  return node_with_outputs(type, std::move(inputs), 1, std::move(attributes)).front();
}

std::string OnnxBuilder::weight(const std::string& hint, const at::Tensor& values) {
  return graph_.weights.emplace_back(fresh(hint), values).first;
}

std::string OnnxBuilder::scalar(double value, at::ScalarType dtype) {
  return weight("number", at::full({}, value, dtype));
}

std::string OnnxBuilder::integers(const std::vector<int64_t>& values) {
  return weight("numbers", at::tensor(values, at::kLong));
}

std::string OnnxBuilder::cast(const std::string& name, at::ScalarType from, at::ScalarType to) {
  if (from == to) return name;
  const int32_t type = onnx_dtype(to);
  if (type == 0) throw CannotExport(fmt::format("ONNX has no {}", c10::toString(to)));
  return node("Cast", {name}, {{"to", int64_t{type}}});
}

std::string OnnxBuilder::name_of(ValueId id) {
  std::string& bound = bound_[id.index];
  if (c10::isComplexType(value(id).dtype)) throw CannotExport("complex numbers other than view_as_real(stft(...))");
  if (!bound.empty()) return bound;
  const at::Tensor& values = value(id).constant;
  if (!values.defined()) throw CannotExport("a result that has no equivalent in ONNX");
  const auto named = names_.find(values.const_data_ptr());
  if (named == names_.end()) return bound = weight("constant", values);
  bound = named->second;
  names_.erase(named);  // another view of the same memory gets another name
  return graph_.weights.emplace_back(bound, values).first;
}

void OnnxCall::refuse(const std::string& reason) const {
  throw CannotExport(fmt::format("aten::{}: {}", call_.name, reason));
}

const TracedArgument& OnnxCall::argument(const std::string& name) const {
  static const TracedArgument none;
  const auto found = call_.arguments.find(name);
  if (found == call_.arguments.end()) return none;
  if (std::holds_alternative<Varying>(found->second)) refuse(name + " depends on the number of rows");
  return found->second;
}

bool OnnxCall::has(const std::string& name) const { return !std::holds_alternative<std::monostate>(argument(name)); }

ValueId OnnxCall::id(const std::string& name) const {
  const auto* found = std::get_if<ValueId>(&argument(name));
  if (!found) refuse(name + " is not a tensor");
  return *found;
}

std::vector<ValueId> OnnxCall::ids(const std::string& name) const {
  const auto* found = std::get_if<std::vector<ValueId>>(&argument(name));
  if (!found) refuse(name + " is not a list of tensors");
  return *found;
}

std::string OnnxCall::operand(const std::string& name, at::ScalarType dtype) const {
  if (!std::holds_alternative<ValueId>(argument(name))) return build.scalar(number_or(name, 0), dtype);
  return build.cast(tensor(name), value(name).dtype, dtype);
}

int64_t OnnxCall::integer(const std::string& name) const {
  const auto* found = std::get_if<int64_t>(&argument(name));
  if (!found) refuse(name + " is not an integer");
  return *found;
}

int64_t OnnxCall::integer_or(const std::string& name, int64_t fallback) const {
  return has(name) ? integer(name) : fallback;
}

double OnnxCall::number_or(const std::string& name, double fallback) const {
  const TracedArgument& found = argument(name);
  if (const auto* real = std::get_if<double>(&found)) return *real;
  if (const auto* whole = std::get_if<int64_t>(&found)) return static_cast<double>(*whole);
  if (const auto* flag = std::get_if<bool>(&found)) return *flag ? 1 : 0;
  if (const auto* id = std::get_if<ValueId>(&found)) {
    const at::Tensor& constant = build.value(*id).constant;
    if (constant.defined() && constant.numel() == 1) return constant.item<double>();
  }
  if (!std::holds_alternative<std::monostate>(found)) refuse(name + " is not a number");
  return fallback;
}

bool OnnxCall::flag_or(const std::string& name, bool fallback) const {
  const TracedArgument& found = argument(name);
  if (const auto* flag = std::get_if<bool>(&found)) return *flag;
  return std::holds_alternative<std::monostate>(found) ? fallback : integer(name) != 0;
}

std::string OnnxCall::text_or(const std::string& name, const std::string& fallback) const {
  const auto* found = std::get_if<std::string>(&argument(name));
  return found ? *found : fallback;
}

std::vector<int64_t> OnnxCall::integers(const std::string& name) const {
  const TracedArgument& found = argument(name);
  if (const auto* one = std::get_if<int64_t>(&found)) return {*one};
  const auto* list = std::get_if<std::vector<int64_t>>(&found);
  if (!list) refuse(name + " is not a list of integers");
  return *list;
}

int64_t OnnxCall::dim(const std::string& name, const std::string& of) const {
  const int64_t given = integer(name);
  return given < 0 ? given + static_cast<int64_t>(value(of).sizes.size()) : given;
}

std::vector<int64_t> OnnxCall::dims(const std::string& name) const {
  const auto rank = static_cast<int64_t>(value("self").sizes.size());
  std::vector<int64_t> all(static_cast<size_t>(rank));
  std::iota(all.begin(), all.end(), 0);
  if (!has(name)) return all;
  std::vector<int64_t> given = integers(name);
  if (given.empty()) return all;
  for (int64_t& each : given) each = each < 0 ? each + rank : each;
  std::sort(given.begin(), given.end());
  return given;
}

}  // namespace trainkit::detail
