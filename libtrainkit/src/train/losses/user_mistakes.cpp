#include "train/losses/user_mistakes.h"

#include <absl/status/statusor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <unordered_set>

#include "distributed/replicas/replica_tools.h"
#include "optim/optimizer_parts.h"
#include "trainkit/core/error.h"

namespace trainkit::detail {
namespace {

[[noreturn]] void refuse(Error error) {
  error.exit_code = ExitCode::kUsage;
  throw absl::BadStatusOrAccess(to_status(error));
}

std::string place(int64_t step) { return step > 0 ? "step " + std::to_string(step) : "evaluation"; }

std::string shape_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return "an undefined tensor";
  return fmt::format("shape [{}]", fmt::join(tensor.sizes().begin(), tensor.sizes().end(), ", "));
}

bool is_scalar(const at::Tensor& tensor) { return tensor.defined() && tensor.numel() == 1; }

bool is_trained(const torch::nn::Module& model) {
  const std::vector<at::Tensor> parameters = model.parameters();
  return std::any_of(parameters.begin(), parameters.end(), [](const at::Tensor& p) { return p.requires_grad(); });
}

[[noreturn]] void refuse_frozen(const std::string& where) {
  refuse({.id = "user.frozen",
          .where = where,
          .field = "model",
          .problem = "none of its parameters requires a gradient",
          .hint = "leave at least one layer trainable (requires_grad) in the factory of DeviceReplicator::create"});
}

}  // namespace

static void check_sparse_parameters(const torch::nn::Module& model, const Optimizer& optimizer) {
  if (OptimizerParts::of(optimizer).parameters.takes_sparse) return;
  std::unordered_set<const void*> updated;
  for (const ParamGroup& group : optimizer.param_groups()) {
    for (const NamedParameter& parameter : group.params) updated.insert(parameter.tensor.unsafeGetTensorImpl());
  }
  for (const auto& [name, parameter] : sparse_parameters(model)) {
    if (!updated.empty() && !updated.contains(parameter.unsafeGetTensorImpl())) continue;
    refuse({.id = "user.sparse",
            .field = "parameter '" + name + "'",
            .problem = "has sparse gradients, which this optimizer does not take",
            .expected = "SparseAdam or Adagrad",
            .hint = "or build its layer with sparse(false)"});
  }
}

void check_parameters(const torch::nn::Module& model, const Optimizer& optimizer) {
  check_sparse_parameters(model, optimizer);
  std::unordered_set<const void*> known;
  for (const at::Tensor& parameter : model.parameters()) known.insert(parameter.unsafeGetTensorImpl());
  if (known.empty()) {
    refuse({.id = "user.unregistered",
            .field = "model",
            .problem = "has no parameters",
            .hint = "register its layers in its constructor: layer = register_module(\"layer\", "
                    "torch::nn::Linear(8, 4)), and single tensors with register_parameter"});
  }
  if (optimizer.param_groups().empty() && !is_trained(model)) refuse_frozen("");
  for (size_t group = 0; group < optimizer.param_groups().size(); ++group) {
    const std::vector<NamedParameter>& parameters = optimizer.param_groups()[group].params;
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (known.contains(parameters[i].tensor.unsafeGetTensorImpl())) continue;
      refuse({.id = "user.parameter",
              .field = fmt::format("parameter {} of group {} (counted from 0)", i, group),
              .problem = "is not a parameter of the model, so no checkpoint would contain it",
              .got = parameters[i].name,
              .expected = "parameters of DeviceReplicator::module()",
              .hint = "register it in the model (register_parameter, or register_module for a layer) before "
                      "DeviceReplicator::create"});
    }
  }
}

void check_output(const LossOutput& output, int64_t step) {
  if (!is_scalar(output.loss)) {
    refuse({.id = "user.loss",
            .where = place(step),
            .field = "loss",
            .problem = "is not a scalar",
            .got = shape_of(output.loss),
            .expected = "one element",
            .hint = "return the mean over the rows: loss.mean(), or torch::kMean as the reduction of the loss; set "
                    "LossOutput::weight if it is a mean over other items"});
  }
  for (const auto& [name, value] : output.metrics) {
    if (is_scalar(value)) continue;
    refuse({.id = "user.metric",
            .where = place(step),
            .field = name,
            .problem = "a metric of LossOutput::metrics is not a scalar",
            .got = shape_of(value),
            .expected = "one element",
            .hint = "return its mean over the rows: value.mean()"});
  }
}

void check_requires_grad(const LossOutput& output, const torch::nn::Module& model, int64_t step) {
  if (output.loss.requires_grad()) return;
  if (!is_trained(model)) refuse_frozen(place(step));
  refuse({.id = "user.detached",
          .where = place(step),
          .field = "loss",
          .problem = "does not require a gradient: it is detached or depends on no parameter of the model",
          .hint = "compute LossOutput::loss from the model's output without detach(), item(), argmax() or "
                  "torch::NoGradGuard; of layers that are not registered (register_module) nothing is trained"});
}

void throw_without_gradient(int64_t step) {
  refuse({.id = "user.detached",
          .where = place(step),
          .field = "loss",
          .problem = "depends on no parameter of the optimizer",
          .hint = "register the layers that compute the loss in the model (register_module) and add their parameters "
                  "to the optimizer (Optimizer::add_param_group); without groups it gets all of the model's"});
}

}  // namespace trainkit::detail
