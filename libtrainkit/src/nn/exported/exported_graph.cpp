#include "nn/exported/exported_graph.h"

#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "core/base/strict_json.h"
#include "nn/exported/python_numbers.h"
#include "trainkit/amp/autocast.h"

namespace trainkit::detail {
namespace {

using Json = nlohmann::json;

std::string describe(const c10::IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) return "None";
    return fmt::format("({}) {}", fmt::join(tensor.sizes(), ", "), c10::toString(tensor.scalar_type()));
  }
  if (value.isInt()) return std::to_string(value.toInt());
  if (value.isDouble()) return fmt::format("{}", value.toDouble());
  return value.isNone() ? "None" : value.tagKind();
}

}  // namespace

ExportedGraph::ExportedGraph(const Json& json, int64_t inputs, std::shared_ptr<const ExportedTables> tables)
    : tables_(std::move(tables)), inputs_(inputs) {
  int64_t count = inputs;
  for (const Json& call : json.at("calls")) calls_.push_back(read(call, count++));
  for (const Json& output : json.at("outputs")) outputs_.emplace_back(output, nullptr, count);
  find_last_uses();
}

ExportedGraph::Call ExportedGraph::read(const Json& json, int64_t count) const {
  Call call;
  const Json& arguments = json.at("args");
  if (json.contains("source")) {
    call.source = json_integer(json["source"]).value_or(-1);
    TORCH_CHECK_VALUE(call.source >= 0 && call.source < std::ssize(tables_->sources), "has a line of no source");
  }
  if (json.contains("op")) {
    const auto number = json_integer(json["op"]);
    TORCH_CHECK_VALUE(number && *number >= 0 && *number < std::ssize(tables_->operators), "calls an unknown operator");
    call.op = &tables_->operators[static_cast<size_t>(*number)];
    check_arguments(*call.op, arguments);
    for (const c10::Argument& argument : call.op->handle.schema().arguments()) {
      const auto given = arguments.find(argument.name());
      if (given == arguments.end()) {
        call.arguments.emplace_back(*argument.default_value());
      } else {
        call.arguments.emplace_back(*given, argument.type(), count);
      }
    }
    return call;
  }
  if (json.contains("py")) {
    call.kind = Kind::kNumber;
    call.number = json["py"].get<std::string>();
    TORCH_CHECK_VALUE(is_python_function(call.number), "calls '", call.number, "', which this version does not know");
  } else {
    call.kind = Kind::kGraph;
    const Json& graph = json.at("graph");
    call.nested.graph = std::make_shared<const ExportedGraph>(graph, std::ssize(arguments), tables_);
    TORCH_CHECK_VALUE(json_integer(graph.at("inputs")) == std::ssize(arguments),
                      "calls a graph with another number of arguments");
    if (json.contains("grad")) call.nested.grad = json["grad"].get<bool>();
    if (json.contains("autocast")) {
      call.nested.autocast = json["autocast"].at("enabled").get<bool>();
      const Json& dtype = json["autocast"].at("dtype");
      if (dtype == "float16") call.nested.autocast_dtype = at::kHalf;
      if (dtype == "bfloat16") call.nested.autocast_dtype = at::kBFloat16;
    }
  }
  for (const Json& argument : arguments) call.arguments.emplace_back(argument, nullptr, count);
  return call;
}

void ExportedGraph::find_last_uses() {
  std::vector<int64_t> last(static_cast<size_t>(inputs_) + calls_.size(), -1), uses;
  for (size_t i = 0; i < calls_.size(); ++i) {
    uses.assign(1, inputs_ + static_cast<int64_t>(i));  // its own value, if nothing uses it
    for (const ExportedValue& argument : calls_[i].arguments) argument.append_uses(uses);
    for (const int64_t value : uses) last[static_cast<size_t>(value)] = static_cast<int64_t>(i);
  }
  uses.clear();
  for (const ExportedValue& output : outputs_) output.append_uses(uses);
  for (const int64_t value : uses) last[static_cast<size_t>(value)] = -1;
  for (size_t value = 0; value < last.size(); ++value) {
    if (last[value] >= 0) calls_[static_cast<size_t>(last[value])].last_uses.push_back(static_cast<int64_t>(value));
  }
}

std::vector<c10::IValue> ExportedGraph::run(std::vector<c10::IValue> inputs, at::Device device) const {
  TORCH_CHECK_VALUE(std::ssize(inputs) == inputs_, "a graph of ", inputs_, " inputs got ", inputs.size());
  std::vector<c10::IValue> values = std::move(inputs);
  values.reserve(values.size() + calls_.size());
  for (const Call& call : calls_) {
    try {
      values.push_back(run(call, values, device));
    } catch (c10::Error& error) {
      if (call.kind != Kind::kGraph) error.add_context(place(call, values, device));
      throw;
    }
    for (const int64_t last : call.last_uses) values[static_cast<size_t>(last)] = {};
  }
  std::vector<c10::IValue> outputs;
  outputs.reserve(outputs_.size());
  for (const ExportedValue& output : outputs_) outputs.push_back(output.in_call(values, device));
  return outputs;
}

c10::IValue ExportedGraph::run(const Call& call, const std::vector<c10::IValue>& values, at::Device device) const {
  std::vector<c10::IValue> arguments;
  arguments.reserve(call.arguments.size());
  for (const ExportedValue& argument : call.arguments) arguments.push_back(argument.in_call(values, device));
  if (call.kind == Kind::kNumber) return call_python_function(call.number, arguments);
  if (call.kind == Kind::kOperator) {
    call.op->handle.callBoxed(arguments);  // replaces the arguments by the results
    if (arguments.size() == 1) return std::move(arguments.front());
    return c10::ivalue::Tuple::create(std::move(arguments));
  }
  const Nested& nested = call.nested;
  std::optional<c10::AutoGradMode> grad;
  std::optional<AutocastGuard> autocast;
  if (nested.grad) grad.emplace(*nested.grad);
  if (nested.autocast) {
    const auto dtype = nested.autocast_dtype.value_or(at::autocast::get_autocast_dtype(device.type()));
    autocast.emplace(device, dtype, *nested.autocast, at::autocast::is_autocast_cache_enabled());
  }
  return c10::ivalue::Tuple::create(nested.graph->run(std::move(arguments), device));
}

std::string ExportedGraph::place(const Call& call, const std::vector<c10::IValue>& values, at::Device device) const {
  std::string text = call.kind == Kind::kOperator ? call.op->name() : call.number;
  std::vector<std::string> arguments;
  for (const ExportedValue& argument : call.arguments) {
    try {
      const c10::IValue value = argument.in_call(values, device);
      if (value.isTensor() || value.isNone() || value.isScalar()) arguments.push_back(describe(value));
    } catch (const c10::Error&) {
      arguments.emplace_back("?");
    }
  }
  text += fmt::format(" of {}", fmt::join(arguments, ", "));
  if (call.source >= 0) text += "; " + tables_->sources[static_cast<size_t>(call.source)];
  return "in " + text;
}

}  // namespace trainkit::detail
