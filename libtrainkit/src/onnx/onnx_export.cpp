#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <set>
#include <utility>

#include "onnx/onnx_builder.h"
#include "onnx/onnx_file.h"
#include "onnx/onnx_trace.h"
#include "trainkit/core/error.h"
#include "trainkit/core/evaluation_mode.h"
#include "trainkit/onnx/onnx.h"

namespace trainkit {
namespace {

using detail::CannotExport;
using detail::OnnxGraph;
using detail::Trace;

/// Puts a module into evaluation mode, with parameters that need no gradient: the tracer refuses others as constants.
class EvaluationOnly {
 public:
  explicit EvaluationOnly(torch::nn::Module& module) : mode_(module) {
    for (const at::Tensor& parameter : module.parameters()) {
      if (!parameter.requires_grad()) continue;
      parameter.requires_grad_(false);
      trained_.push_back(parameter);
    }
  }
  EvaluationOnly(const EvaluationOnly&) = delete;
  EvaluationOnly& operator=(const EvaluationOnly&) = delete;
  ~EvaluationOnly() {
    for (const at::Tensor& parameter : trained_) parameter.requires_grad_(true);
  }

 private:
  EvaluationMode mode_;
  std::vector<at::Tensor> trained_;
};

std::map<const void*, std::string> names_of(const torch::nn::Module& module) {
  std::map<const void*, std::string> names;
  for (const auto& entry : module.named_parameters()) names.emplace(entry.value().const_data_ptr(), entry.key());
  for (const auto& entry : module.named_buffers()) names.emplace(entry.value().const_data_ptr(), entry.key());
  return names;
}

void translate(detail::OnnxBuilder& builder, const detail::TracedCall& call) {
  for (const auto* operations : {&detail::onnx_tensor_operations(), &detail::onnx_layer_operations()}) {
    const auto found = operations->find(call.name);
    if (found == operations->end()) continue;
    detail::OnnxCall one(builder, call);
    return found->second(one);
  }
  throw CannotExport(fmt::format("the operation aten::{}", call.name));
}

/// Removes nodes and weights that no output needs.
void remove_unused(OnnxGraph& graph) {
  std::set<std::string> needed;
  for (const auto& output : graph.outputs) needed.insert(output.name);
  std::vector<detail::OnnxNode> kept;
  for (auto node = graph.nodes.rbegin(); node != graph.nodes.rend(); ++node) {
    if (std::none_of(node->outputs.begin(), node->outputs.end(), [&](const auto& out) { return needed.contains(out); }))
      continue;
    needed.insert(node->inputs.begin(), node->inputs.end());
    kept.push_back(std::move(*node));
  }
  graph.nodes.assign(std::make_move_iterator(kept.rbegin()), std::make_move_iterator(kept.rend()));
  std::erase_if(graph.weights, [&](const auto& weight) { return !needed.contains(weight.first); });
}

OnnxGraph graph_of(const Trace& trace, const OnnxModel& model) {
  OnnxGraph graph{.name = model.module->name(), .metadata = model.metadata};
  detail::OnnxBuilder builder(trace, names_of(*model.module), graph);
  const auto value_of = [&](detail::ValueId id, const std::string& name) {
    return detail::OnnxValue{name, builder.value(id).dtype, builder.value(id).sizes};
  };
  for (size_t i = 0; i < trace.inputs.size(); ++i) {
    builder.bind(trace.inputs[i], model.inputs[i].first);
    graph.inputs.push_back(value_of(trace.inputs[i], model.inputs[i].first));
  }
  for (const detail::TracedCall& call : trace.calls) translate(builder, call);
  TORCH_CHECK_VALUE(trace.outputs.size() == model.outputs.size(), "forward returned ", trace.outputs.size(),
                    " tensors, but there are ", model.outputs.size(), " names of outputs");
  for (size_t i = 0; i < trace.outputs.size(); ++i) {
    const std::string& name = model.outputs[i];
    graph.nodes.push_back({.type = "Identity", .inputs = {builder.name_of(trace.outputs[i])}, .outputs = {name}});
    graph.outputs.push_back(value_of(trace.outputs[i], name));
  }
  remove_unused(graph);
  return graph;
}

}  // namespace

absl::Status export_onnx(const std::string& path, const OnnxModel& model) {
  std::vector<at::Tensor> examples;
  for (const auto& [name, example] : model.inputs) {
    TORCH_CHECK_VALUE(example.dim() >= 1 && example.size(0) >= 1, "input ", name, " needs a row");
    examples.push_back(example);
  }
  try {
    const at::NoGradGuard no_grad;
    const EvaluationOnly evaluation(*model.module);
    return detail::save_onnx(Fs::posix(), path, graph_of(detail::trace_function(model.forward, examples), model));
  } catch (const CannotExport& reason) {
    return to_status({.exit_code = ExitCode::kUsage,
                      .id = "onnx.operator",
                      .where = path,
                      .field = model.module->name(),
                      .problem = fmt::format("cannot be written as ONNX: {}", reason.what())});
  }
}

}  // namespace trainkit
