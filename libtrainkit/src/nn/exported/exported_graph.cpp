#include "nn/exported/exported_graph.h"

#include <ATen/TracerMode.h>
#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include <cmath>
#include <numbers>
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
  if (tables_->has_kernels) use_kernels();
  find_last_uses();
}

void ExportedGraph::use_kernels() {
  std::vector<int64_t> all, uses(static_cast<size_t>(inputs_) + calls_.size(), 0);
  for (const Call& call : calls_) {
    for (const ExportedValue& argument : call.arguments) argument.append_uses(all);
  }
  for (const ExportedValue& output : outputs_) output.append_uses(all);
  for (const int64_t value : all) ++uses[static_cast<size_t>(value)];
  for (size_t i = 0; i < calls_.size(); ++i) {
    if (calls_[i].op && calls_[i].op->name() == "aten::mul.Tensor") fuse_gelu(i, uses);
  }
  for (Call& call : calls_) {
    if (call.op) call.kernel = find_kernel(call.op->handle, call.arguments);
  }
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
    const auto name = json["py"].get<std::string>();
    call.function = find_python_function(name);
    TORCH_CHECK_VALUE(call.function, "calls '", name, "', which this version does not know");
  } else {
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

// Note [GELU in parts]
//
// transformers' NewGELUActivation, the activation of GPT-2 and others, is eight operators on sizes of the widest layer:
// 0.5 x (1 + tanh(0.79788 (x + 0.044715 x^3))). fuse_gelu() makes the last product the call aten::gelu(x, "tanh"), and
// the others empty calls; the numbers of values stay.

void ExportedGraph::fuse_gelu(size_t last, const std::vector<int64_t>& uses) {
  std::vector<size_t> parts;
  // The call that computes a value, if it is `name` and nothing else uses it.
  const auto call_of = [&](const ExportedValue* value, const char* name) -> const Call* {
    const int64_t number = value ? value->number() : -1;
    if (number < inputs_ || uses[static_cast<size_t>(number)] != 1) return nullptr;
    parts.push_back(static_cast<size_t>(number - inputs_));
    const Call& call = calls_[parts.back()];
    return call.op && call.op->name() == name ? &call : nullptr;
  };
  // The first argument of such a call whose second one is about `factor`.
  const auto operand = [&](const ExportedValue* value, const char* name, double factor) -> const ExportedValue* {
    const Call* call = call_of(value, name);
    const auto number = call ? call->arguments[1].constant_number() : std::nullopt;
    return number && std::abs(*number - factor) < 1e-6 ? &call->arguments[0] : nullptr;
  };
  const ExportedValue* x = operand(&calls_[last].arguments[0], "aten::mul.Tensor", 0.5);
  const Call* tanh = call_of(operand(&calls_[last].arguments[1], "aten::add.Tensor", 1), "aten::tanh");
  const Call* sum =
      call_of(tanh ? operand(&tanh->arguments[0], "aten::mul.Tensor", std::sqrt(2 / std::numbers::pi)) : nullptr,
              "aten::add.Tensor");
  const ExportedValue* cubed =
      sum ? operand(operand(&sum->arguments[1], "aten::mul.Tensor", 0.044715), "aten::pow.Tensor_Scalar", 3) : nullptr;
  if (!x || !cubed || x->number() < 0 || x->number() != cubed->number() || x->number() != sum->arguments[0].number())
    return;
  static const ExportedOperator gelu{c10::Dispatcher::singleton().findSchemaOrThrow("aten::gelu", ""),
                                     torch::jit::parseSchema("aten::gelu(Tensor self) -> Tensor")};
  Call fused{.op = &gelu, .arguments = {*x, ExportedValue(c10::IValue("tanh"))}, .source = calls_[last].source};
  for (const size_t part : parts) calls_[part] = Call{};
  calls_[last] = std::move(fused);
}

std::map<int64_t, bool> ExportedGraph::linear_weights() const {
  std::map<int64_t, bool> weights;
  std::vector<int64_t> uses, others;
  for (const Call& call : calls_) {
    uses.clear();
    for (const ExportedValue& argument : call.arguments) argument.append_uses(uses);
    const std::string name = call.op ? call.op->handle.operator_name().name : "";
    const size_t at = name == "aten::linear" ? 1 : name == "aten::addmm" ? 2 : call.arguments.size();
    for (const int64_t value : uses) {
      const bool is_weight = at < call.arguments.size() && call.arguments[at].number() == value;
      if (value >= inputs_) continue;
      is_weight ? static_cast<void>(weights.emplace(value, name == "aten::addmm")) : others.push_back(value);
    }
  }
  for (const ExportedValue& output : outputs_) output.append_uses(others);
  for (const int64_t value : others) weights.erase(value);
  return weights;
}

std::set<int64_t> ExportedGraph::embedding_weights() const {
  std::set<int64_t> weights;
  for (const Call& call : calls_) {
    if (!call.op || call.op->handle.operator_name().name != "aten::embedding") continue;
    const int64_t value = call.arguments[0].number();
    if (value >= 0 && value < inputs_) weights.insert(value);
  }
  return weights;
}

std::vector<c10::IValue> ExportedGraph::run(std::vector<c10::IValue> inputs, at::Device device) const {
  TORCH_CHECK_VALUE(std::ssize(inputs) == inputs_, "a graph of ", inputs_, " inputs got ", inputs.size());
  std::vector<c10::IValue> values = std::move(inputs);
  values.reserve(values.size() + calls_.size());
  std::vector<c10::IValue> stack;
  for (const Call& call : calls_) {
    try {
      values.push_back(run(call, values, device, stack));
    } catch (c10::Error& error) {
      if (!call.nested.graph) error.add_context(place(call, values, device));
      throw;
    }
    for (const int64_t last : call.last_uses) values[static_cast<size_t>(last)] = {};
  }
  std::vector<c10::IValue> outputs;
  outputs.reserve(outputs_.size());
  for (const ExportedValue& output : outputs_) outputs.push_back(output.in_call(values, device));
  return outputs;
}

c10::IValue ExportedGraph::run(const Call& call, const std::vector<c10::IValue>& values, at::Device device,
                               std::vector<c10::IValue>& stack) {
  stack.clear();
  for (const ExportedValue& argument : call.arguments) stack.push_back(argument.in_call(values, device));
  if (call.kernel && !at::tracer::impl::is_dispatch_enabled()) {
    if (at::Tensor result = call.kernel(stack); result.defined()) return result;
  }
  if (call.op) {
    call.op->handle.callBoxed(stack);  // replaces the arguments by the results
    if (stack.size() == 1) return std::move(stack.front());
    return c10::ivalue::Tuple::create(std::move(stack));
  }
  if (call.function) return (*call.function)(stack);
  return call.nested.graph ? run(call.nested, std::move(stack), device) : c10::IValue();
}

c10::IValue ExportedGraph::run(const Nested& nested, std::vector<c10::IValue> arguments, at::Device device) {
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
  std::string text = call.op ? call.op->name() : call.function->name;
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
