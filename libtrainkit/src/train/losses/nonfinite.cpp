#include "train/losses/nonfinite.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/libtorch/autograd_nodes.h"
#include "core/machine/shapes_only.h"

namespace trainkit::detail {
namespace {

using torch::autograd::Node;

// Note [Search for the first non-finite value]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// The loss function may count its calls, so the search does not call it again. On the CPU the loss is known before its
// backward, while the autograd graph still has the values that the operations keep: inputs, or their own results. Nodes
// are visited in the order in which forward created them. The first kept value that is not finite names the operation:
// - a value with a grad_fn was returned by that node's operation;
// - a value without one (a row of the batch, a target) was taken by the node that keeps it.
// An operation that keeps nothing (a sum) is passed over; its result is seen where the next one keeps it. Node has no
// public way to list what it keeps; compiled_args() collects it for compiled autograd.

/// Returns "nan", "inf", or nullptr. Minus infinity is allowed, since masks contain it.
const char* problem_of(const at::Tensor& tensor) {
  const bool is_dense = tensor.defined() && tensor.layout() == at::kStrided && tensor.is_cpu();
  if (!is_dense || tensor.numel() == 0 || !tensor.is_floating_point()) return nullptr;
  const double largest = tensor.detach().max().item<double>();  // NaN if there is one
  return std::isnan(largest) ? "nan" : std::isinf(largest) && largest > 0 ? "inf" : nullptr;
}

std::string quoted_owner(const std::string& name) {
  const size_t dot = name.rfind('.');
  return dot == std::string::npos ? "the model" : fmt::format("'{}'", name.substr(0, dot));
}

std::string last_part(const std::string& name) { return name.substr(name.rfind('.') + 1); }  // npos + 1 is 0

/// Returns the values that a node keeps for backward; none if it does not say so.
std::vector<at::Tensor> kept_by(const NodePointer<Node>& node) {
  namespace compiled = torch::dynamo::autograd;
  compiled::AutogradCompilerCall compiler(compiled::SizeInput::STATIC);
  compiled::NodeCall call(0, node);
  compiled::CompiledNodeArgs args(compiler, call);
  try {
    node->compiled_args(args);
  } catch (const c10::NotImplementedError&) {
    return {};
  }
  return compiler.tensor_args.inputs;
}

/// "AddmmBackward0" is "aten::addmm".
std::string operation_of(const Node& node) {
  std::string name = node.name();
  const size_t end = name.rfind("Backward");
  if (end == std::string::npos || name.find(':') != std::string::npos) return name;
  std::string operation = "aten::";
  for (size_t i = 0; i < end; ++i) {
    const auto letter = static_cast<unsigned char>(name[i]);
    if (i > 0 && std::isupper(letter)) operation += '_';
    operation += static_cast<char>(std::tolower(letter));
  }
  return operation;
}

/// Returns whether the node's operation computes nothing: its result is a view.
bool is_view(const Node& node) {
  constexpr std::array kViews = {"View",   "Reshape", "TBackward", "Transpose", "Permute",   "Slice", "Select",
                                 "Expand", "Squeeze", "Unsqueeze", "Unsafe",    "AsStrided", "Alias"};
  const std::string name = node.name();
  return node.num_outputs() == 1 &&
         std::any_of(kViews.begin(), kViews.end(), [&](const char* view) { return name.starts_with(view); });
}

/// The nodes of a graph in the order of forward.
std::vector<NodePointer<Node>> nodes_of(const at::Tensor& loss) {
  std::vector<NodePointer<Node>> nodes;
  if (loss.grad_fn()) nodes.push_back(loss.grad_fn());
  std::unordered_set<const Node*> seen;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const NodePointer<Node> node = nodes[i];
    for (const torch::autograd::Edge& edge : node->next_edges()) {
      if (edge.function && seen.insert(edge.function.get()).second) nodes.push_back(edge.function);
    }
  }
  std::sort(nodes.begin(), nodes.end(), [](auto& a, auto& b) { return a->sequence_nr() < b->sequence_nr(); });
  return nodes;
}

class Search {
 public:
  Search(const torch::nn::Module& module, const Batch& batch) : batch_(batch) {
    for (const auto& parameter : module.named_parameters()) {
      owners_.emplace(parameter.value().unsafeGetTensorImpl(), quoted_owner(parameter.key()));
    }
  }

  std::string in(const at::Tensor& loss) {
    std::string last;  // the last operation whose kept values are finite
    for (const NodePointer<Node>& node : nodes_of(loss)) {
      const std::string owner = owner_of(*node);
      if (!owner.empty()) last_owner_ = owner;
      reached_[node.get()] = last_owner_;
      const std::vector<at::Tensor> kept = kept_by(node);
      for (const at::Tensor& value : kept) {
        if (const char* problem = problem_of(value)) return report(*node, owner, value, problem);
      }
      const bool is_leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(node.get()) != nullptr;
      if (!kept.empty() && !is_leaf) last = operation_of(*node);
    }
    const char* problem = problem_of(loss);
    const std::string after = last_owner_.empty() ? "" : " after " + last_owner_;
    return fmt::format("{}{} returned {}", last.empty() ? "an operation" : last + ", or an operation after it,", after,
                       problem ? problem : "-inf");
  }

 private:
  /// Returns the module of a parameter that the node's operation takes, itself or a view of it; empty if there is none.
  std::string owner_of(const Node& node) const {
    for (const torch::autograd::Edge& edge : node.next_edges()) {
      const Node* from = edge.function.get();
      while (from && from->num_outputs() == 1) from = from->next_edge(0).function.get();
      const auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(from);
      const auto owner = leaf ? owners_.find(leaf->variable.unsafeGetTensorImpl()) : owners_.end();
      if (owner != owners_.end()) return owner->second;
    }
    return "";
  }

  std::string report(const Node& node, const std::string& owner, const at::Tensor& value, const char* problem) const {
    NodePointer<Node> producer = value.grad_fn();
    while (producer && is_view(*producer) && producer->next_edge(0).function) {
      producer = producer->next_edge(0).function;
    }
    if (!producer) {
      const std::string place = !owner.empty() ? ", in " + owner : "";
      const std::string after = owner.empty() && !last_owner_.empty() ? " after " + last_owner_ : "";
      return fmt::format("{}{} took {}{}{}", operation_of(node), after, problem, place, row());
    }
    const auto reached = reached_.find(producer.get());
    const std::string& before = reached == reached_.end() ? last_owner_ : reached->second;
    return fmt::format("{}{} returned {}", operation_of(*producer), before.empty() ? "" : " after " + before, problem);
  }

  /// Names the first row of the batch that is not finite; empty if all are.
  std::string row() const {
    for (size_t i = 0; i < batch_.tensors().size(); ++i) {
      const at::Tensor& tensor = batch_.tensors()[i];
      if (!problem_of(tensor)) continue;
      for (int64_t row = 0; row < batch_.size(); ++row) {
        const char* problem = problem_of(tensor[row]);
        if (!problem) continue;
        const int64_t index = batch_.row_indices().empty() ? row : batch_.row_indices()[static_cast<size_t>(row)];
        return fmt::format("; '{}' of row {} is {}", batch_.fields()[i].name, index, problem);
      }
    }
    return "";
  }

  const Batch& batch_;
  std::unordered_map<const void*, std::string> owners_;   // by parameter
  std::unordered_map<const Node*, std::string> reached_;  // the last owner up to this node
  std::string last_owner_;
};

using Parameters = std::vector<std::pair<std::string, at::Tensor>>;

/// Describes the first parameter for which `is_bad` is true.
template <class F>
std::string first_parameter(const Parameters& parameters, const F& is_bad) {
  for (const auto& [name, parameter] : parameters) {
    if (is_bad(parameter)) return fmt::format("{} of {} is not finite", last_part(name), quoted_owner(name));
  }
  return "";
}

bool is_bad_weight(const at::Tensor& parameter) { return problem_of(parameter) != nullptr; }

bool has_bad_gradient(const at::Tensor& parameter) {
  at::Tensor gradient = parameter.grad();
  if (gradient.defined() && gradient.is_sparse()) gradient = gradient._values();
  return gradient.defined() && (problem_of(gradient) || problem_of(gradient.neg()));
}

}  // namespace

bool is_finite_on_host(const at::Tensor& loss) { return !loss.is_cpu() || std::isfinite(host_value(loss)); }

std::string first_nonfinite(const torch::nn::Module& module, const Batch& batch, const at::Tensor& loss) try {
  const c10::AutoGradMode no_grad(false);
  const std::string parameter = first_parameter(module.named_parameters().pairs(), is_bad_weight);
  return parameter.empty() ? Search(module, batch).in(loss) : parameter;
} catch (const std::exception&) {  // out of memory: the step continues
  return "";
}

std::string nonfinite_gradient(const torch::nn::Module& module) try {
  const c10::AutoGradMode no_grad(false);
  Parameters parameters = module.named_parameters().pairs();
  if (std::string weight = first_parameter(parameters, is_bad_weight); !weight.empty()) return weight;
  std::reverse(parameters.begin(), parameters.end());  // backward reaches the last ones first
  const std::string gradient = first_parameter(parameters, has_bad_gradient);
  return gradient.empty() ? "" : "the loss is finite, but the gradient of " + gradient;
} catch (const std::exception&) {
  return "";
}

}  // namespace trainkit::detail
