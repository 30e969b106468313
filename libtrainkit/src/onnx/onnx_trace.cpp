#include "onnx/onnx_trace.h"

#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/ir/ir.h>

#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace trainkit::detail {
namespace {

namespace jit = torch::jit;

constexpr int64_t kRows[] = {2, 3};

std::vector<at::Tensor> rows_of(const std::vector<at::Tensor>& examples, int64_t rows, bool other_values) {
  std::vector<at::Tensor> inputs;
  for (const at::Tensor& example : examples) {
    at::Tensor row = example.slice(0, 0, 1);
    if (other_values) {
      row = row.is_floating_point()          ? row * 0.5
            : row.scalar_type() == at::kBool ? row.logical_not()
                                             : at::zeros_like(row);
    }
    inputs.push_back(row.repeat_interleave(rows, 0));
  }
  return inputs;
}

std::shared_ptr<jit::Graph> record(const TensorFunction& function, const std::vector<at::Tensor>& inputs) {
  const auto traced = [&function](jit::Stack stack) {
    const jit::tracer::NoWarn quiet;
    std::vector<at::Tensor> tensors;
    for (const c10::IValue& value : stack) tensors.push_back(value.toTensor());
    const std::vector<at::Tensor> results = function(tensors);
    return jit::Stack(results.begin(), results.end());
  };
  const auto no_name = [](const at::Tensor&) { return std::string(); };
  return jit::tracer::trace(jit::Stack(inputs.begin(), inputs.end()), traced, no_name).first->graph;
}

/// Joins the recordings of two calls into one trace.
class Joiner {
 public:
  Joiner(jit::Graph& first, jit::Graph& second) : graphs_{&first, &second} {}

  Trace join() && {
    for (size_t i = 0; i < graphs_[0]->inputs().size(); ++i) {
      trace_.inputs.push_back(add({graphs_[0]->inputs()[i], graphs_[1]->inputs()[i]}));
    }
    auto a = graphs_[0]->nodes().begin(), b = graphs_[1]->nodes().begin();
    for (; a != graphs_[0]->nodes().end() && b != graphs_[1]->nodes().end(); ++a, ++b) add_node(*a, *b);
    if (a != graphs_[0]->nodes().end() || b != graphs_[1]->nodes().end()) {
      throw CannotExport("the operations depend on the values or on the number of the rows");
    }
    for (size_t i = 0; i < graphs_[0]->outputs().size(); ++i) {
      trace_.outputs.push_back(value({graphs_[0]->outputs()[i], graphs_[1]->outputs()[i]}));
    }
    return std::move(trace_);
  }

 private:
  /// The same value in both graphs.
  struct Pair {
    jit::Value* a;
    jit::Value* b;
  };

  static at::IntArrayRef concrete(const jit::Value* value, std::vector<int64_t>& storage) {
    const auto type = value->type()->cast<c10::TensorType>();
    const auto sizes = type ? type->sizes().concrete_sizes() : std::nullopt;
    if (!sizes) throw CannotExport(fmt::format("the shape of %{} is unknown", value->debugName()));
    storage = *sizes;
    return storage;
  }

  ValueId add(Pair pair) {
    std::vector<int64_t> a, b;
    concrete(pair.a, a);
    concrete(pair.b, b);
    TracedValue value;
    value.dtype = pair.a->type()->expectRef<c10::TensorType>().scalarType().value_or(at::kFloat);
    for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
      if (a.size() != b.size() || (a[i] != b[i] && a[i] * kRows[1] != b[i] * kRows[0])) {
        throw CannotExport(fmt::format("the shape of %{} depends on the values of the rows", pair.a->debugName()));
      }
      value.sizes.push_back(a[i] == b[i] ? a[i] : kAnySize);
    }
    trace_.values.push_back(std::move(value));
    const ValueId id{trace_.values.size() - 1};
    known_[pair.a] = id;
    return id;
  }

  ValueId add_constant(const at::Tensor& a, const at::Tensor& b) {
    const bool same = a.is_same(b) || (a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.equal(b));
    if (!same) throw CannotExport("a tensor that depends on the rows is computed outside of LibTorch's operations");
    trace_.values.push_back({.dtype = a.scalar_type(), .sizes = a.sizes().vec(), .constant = a});
    return {trace_.values.size() - 1};
  }

  ValueId value(Pair pair) {
    if (const auto found = known_.find(pair.a); found != known_.end()) return found->second;
    const auto a = jit::toIValue(pair.a), b = jit::toIValue(pair.b);
    if (!a || !b || !a->isTensor() || !b->isTensor()) throw CannotExport("a value that is not a tensor");
    return known_[pair.a] = add_constant(a->toTensor(), b->toTensor());
  }

  static std::optional<std::vector<int64_t>> integers(const jit::Value* list) {
    if (const auto whole = jit::toIValue(list); whole && whole->isIntList()) return whole->toIntVector();
    if (list->node()->kind() != c10::prim::ListConstruct) return std::nullopt;
    std::vector<int64_t> numbers;
    for (const jit::Value* each : list->node()->inputs()) {
      const auto number = jit::toIValue(each);
      if (!number || !number->isInt()) return std::nullopt;
      numbers.push_back(number->toInt());
    }
    return numbers;
  }

  TracedArgument plain(const c10::IValue& value) const {
    if (value.isBool()) return value.toBool();
    if (value.isInt()) return value.toInt();
    if (value.isDouble()) return value.toDouble();
    if (value.isString()) return value.toStringRef();
    return std::monostate();  // None, and devices, layouts and generators, which do not matter
  }

  TracedArgument argument(Pair pair) {
    if (pair.a->type()->isSubtypeOf(*c10::TensorType::get())) return value(pair);
    if (pair.a->node()->kind() == c10::prim::ListConstruct &&
        pair.a->type()->isSubtypeOf(*c10::ListType::ofTensors())) {
      std::vector<ValueId> ids;
      for (size_t i = 0; i < pair.a->node()->inputs().size(); ++i) {
        ids.push_back(value({pair.a->node()->inputs()[i], pair.b->node()->inputs().at(i)}));
      }
      return ids;
    }
    if (const auto a = integers(pair.a)) {
      return *a == integers(pair.b) ? TracedArgument(*a) : TracedArgument(Varying());
    }
    const auto a = jit::toIValue(pair.a), b = jit::toIValue(pair.b);
    if (!a || !b) throw CannotExport(fmt::format("a value of type {}", pair.a->type()->str()));
    if (a->isTensor() && a->toTensor().defined()) return value(pair);
    const TracedArgument first = plain(*a), second = plain(*b);
    if (first.index() == second.index()) {
      const auto* x = std::get_if<int64_t>(&first);
      const auto* y = std::get_if<double>(&first);
      if ((x && *x != std::get<int64_t>(second)) || (y && *y != std::get<double>(second))) return Varying();
    }
    return first;
  }

  void add_node(jit::Node* a, jit::Node* b) {
    if (a->kind() != b->kind()) throw CannotExport("the operations depend on the values or on the number of the rows");
    if (a->kind() == c10::prim::Constant || a->kind() == c10::prim::ListConstruct) return;  // read by their users
    const auto is_list = [](const jit::Node* node) {
      return node->outputs().size() == 1 && node->output()->type()->isSubtypeOf(*c10::ListType::ofTensors());
    };
    if (is_list(a)) return;  // added with the node that unpacks the list
    jit::Node* operation[] = {a, b};
    if (a->kind() == c10::prim::ListUnpack) {
      operation[0] = a->input()->node();
      operation[1] = b->input()->node();
    }
    TracedCall call{.name = operation[0]->kind().toUnqualString()};
    const c10::FunctionSchema* schema = operation[0]->maybeSchema();
    if (!operation[0]->kind().is_aten() || !schema) {
      throw CannotExport(fmt::format("the operation {}", operation[0]->kind().toQualString()));
    }
    const bool in_place = call.name.ends_with('_');
    if (in_place) call.name.pop_back();
    for (size_t i = 0; i < operation[0]->inputs().size(); ++i) {
      call.arguments[schema->arguments().at(i).name()] =
          argument({operation[0]->inputs()[i], operation[1]->inputs().at(i)});
    }
    for (size_t i = 0; i < a->outputs().size(); ++i) {
      if (!a->outputs()[i]->type()->isSubtypeOf(*c10::TensorType::get())) {
        throw CannotExport(fmt::format("aten::{} gives a number to the program", call.name));
      }
      call.results.push_back(add({a->outputs()[i], b->outputs().at(i)}));
    }
    check_memory(call, in_place);
    trace_.calls.push_back(std::move(call));
  }

  /// Refuses an in-place operation that also changes another value of the trace: ONNX's values have no common memory.
  void check_memory(const TracedCall& call, bool in_place) {
    static const std::unordered_set<std::string> views = {
        "view",   "reshape", "flatten", "unflatten", "permute", "transpose", "t",          "select",
        "slice",  "narrow",  "expand",  "unsqueeze", "squeeze", "chunk",     "split",      "unbind",
        "detach", "alias",   "view_as", "expand_as", "movedim", "to",        "contiguous", "view_as_real"};
    const auto self = call.arguments.find("self");
    const auto* id = self == call.arguments.end() ? nullptr : std::get_if<ValueId>(&self->second);
    if (!id) return;
    if (in_place && (shared_.contains(id->index) || trace_.values[id->index].constant.defined())) {
      throw CannotExport(fmt::format("aten::{}_ changes a tensor that has other views or is a constant", call.name));
    }
    if (!views.contains(call.name)) return;
    shared_.insert(id->index);
    for (const ValueId& result : call.results) shared_.insert(result.index);
  }

  jit::Graph* graphs_[2];
  std::unordered_map<const jit::Value*, ValueId> known_;
  Trace trace_;
  std::unordered_set<size_t> shared_;  // values that may share memory with another one
};

}  // namespace

Trace trace_function(const TensorFunction& function, const std::vector<at::Tensor>& examples) {
  const auto first = record(function, rows_of(examples, kRows[0], /*other_values=*/false));
  const auto second = record(function, rows_of(examples, kRows[1], /*other_values=*/true));
  return Joiner(*first, *second).join();
}

}  // namespace trainkit::detail
