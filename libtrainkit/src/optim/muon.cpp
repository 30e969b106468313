#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/where.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "core/base/option_problems.h"
#include "core/tensors/tensor_lists.h"
#include "trainkit/optim/adam.h"

namespace trainkit {
namespace {

// Source: torch/optim/_muon.py (PyTorch 2.11).
constexpr int kIterations = 5;
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315, kEps = 1e-7;

at::Tensor view(const at::Tensor& memory, int64_t rows, int64_t columns) {
  return memory.narrow(0, 0, rows * columns).view({rows, columns});
}

/// Returns the first `numel` elements of `memory`, or new memory if it is too small.
at::Tensor with_room(const at::Tensor& memory, int64_t numel, const at::TensorOptions& options) {
  return memory.defined() && memory.numel() >= numel ? memory : at::empty({numel}, options);
}

/// Returns `memory`, float32, as a matrix with shape and dtype of `like`.
at::Tensor view_like(const at::Tensor& memory, const at::Tensor& like) {
  const int64_t floats = like.numel() * like.element_size() / memory.element_size();
  return memory.narrow(0, 0, floats).view(like.scalar_type()).view(like.sizes());
}

double rate_factor(const at::Tensor& matrix, bool match_rms_adamw) {
  const auto rows = static_cast<double>(matrix.size(0)), columns = static_cast<double>(matrix.size(1));
  return match_rms_adamw ? 0.2 * std::sqrt(std::max(rows, columns)) : std::sqrt(std::max(1.0, rows / columns));
}

}  // namespace

Muon::Muon(const MuonOptions& options)
    : AdamW({.lr = options.lr,
             .betas = options.betas,
             .eps = options.eps,
             .weight_decay = options.weight_decay,
             .capturable = options.capturable}),
      momentum_(options.momentum),
      nesterov_(options.nesterov),
      match_rms_adamw_(options.match_rms_adamw),
      selects_(options.selects) {
  const std::string problems = option_problems();
  TORCH_CHECK_VALUE(problems.empty(), "Muon: ", problems);
}

std::unique_ptr<Optimizer> Muon::create_like() const {
  const AdamOptions mine = options();
  return std::make_unique<Muon>(MuonOptions{.lr = mine.lr,
                                            .momentum = momentum_,
                                            .nesterov = nesterov_ != 0,
                                            .match_rms_adamw = match_rms_adamw_ != 0,
                                            .weight_decay = mine.weight_decay,
                                            .betas = mine.betas,
                                            .eps = mine.eps,
                                            .capturable = mine.capturable,
                                            .selects = selects_});
}

std::vector<ParamGroup> Muon::groups_for(const torch::nn::Module& model) const {
  std::unordered_set<const void*> embeddings;
  for (const auto& part : model.modules()) {
    const auto* embedding = part->as<torch::nn::EmbeddingImpl>();
    if (embedding) embeddings.insert(embedding->weight.unsafeGetTensorImpl());
  }
  ParamGroup matrices{.params = {}, .name = "muon", .orthogonalize = true};
  const auto is_selected = [&](const NamedParameter& parameter) {
    return parameter.tensor.dim() == 2 && !embeddings.contains(parameter.tensor.unsafeGetTensorImpl()) &&
           (!selects_ || selects_(parameter.name));
  };
  std::vector<ParamGroup> groups;
  for (ParamGroup& group : default_param_groups(model)) {
    const auto first = std::stable_partition(group.params.begin(), group.params.end(),
                                             [&](const NamedParameter& p) { return !is_selected(p); });
    matrices.params.insert(matrices.params.end(), first, group.params.end());
    group.params.erase(first, group.params.end());
    if (!group.params.empty()) groups.push_back(std::move(group));
  }
  if (!matrices.params.empty()) groups.insert(groups.begin(), std::move(matrices));
  return groups;
}

std::vector<std::string> Muon::state_names(const ParamGroup& group) const {
  return group.orthogonalize ? std::vector<std::string>{"momentum_buffer"} : AdamW::state_names(group);
}

std::vector<std::pair<const char*, double*>> Muon::hyperparameters() {
  auto all = AdamW::hyperparameters();
  all.insert(all.end(), {{"momentum", &momentum_}, {"nesterov", &nesterov_}, {"match_rms_adamw", &match_rms_adamw_}});
  return all;
}

std::string Muon::option_problems() const {
  return detail::OptionProblems()
      .require(false, AdamW::option_problems())
      .require(momentum_ >= 0 && momentum_ < 1, "momentum", "in [0, 1)", momentum_)
      .require(nesterov_ == 0 || nesterov_ == 1, "nesterov", "0 or 1", nesterov_)
      .require(match_rms_adamw_ == 0 || match_rms_adamw_ == 1, "match_rms_adamw", "0 or 1", match_rms_adamw_)
      .text();
}

void Muon::reserve(const ParamGroup& group) {
  if (!group.orthogonalize) return;
  int64_t numel = 0, square = 0, floats = 0;
  for (const NamedParameter& parameter : group.params) {
    const at::Tensor& matrix = parameter.tensor;
    TORCH_CHECK_VALUE(matrix.dim() == 2 && matrix.is_contiguous() &&
                          (matrix.scalar_type() == at::kFloat || matrix.scalar_type() == at::kDouble),
                      "Muon: parameter '", parameter.name, "' must be a contiguous float32 or float64 matrix");
    const int64_t side = std::min(matrix.size(0), matrix.size(1));
    numel = std::max(numel, matrix.numel());
    square = std::max(square, side * side);
    floats = std::max(floats, matrix.numel() * matrix.element_size() / static_cast<int64_t>(sizeof(float)));
  }
  const at::TensorOptions options = group.params.front().tensor.options().requires_grad(false);
  for (at::Tensor& memory : matrices_) memory = with_room(memory, numel, options.dtype(at::kBFloat16));
  for (at::Tensor& memory : squares_) memory = with_room(memory, square, options.dtype(at::kBFloat16));
  update_ = with_room(update_, floats, options.dtype(at::kFloat));
}

void Muon::apply(const FusedArguments& a) {
  if (!a.orthogonalize) return AdamW::apply(a);
  for (size_t i = 0; i < a.params.size(); ++i) update_matrix(a, i);
}

/// Returns U V' of the singular value decomposition of `update` (rows, columns), approximately, in the workspace.
at::Tensor Muon::orthogonal(const at::Tensor& update) const {
  const int64_t rows = update.size(0), columns = update.size(1);
  const int64_t side = std::min(rows, columns), length = std::max(rows, columns);
  at::Tensor now = view(matrices_[0], rows, columns).copy_(update);
  if (rows > columns) now = now.t();
  const at::Tensor norm = now.is_cpu() ? detail::norms_of({now}).front() : now.norm();
  now.div_(norm.clamp_min(kEps));
  at::Tensor gram = view(squares_[0], side, side), factor = view(squares_[1], side, side);
  for (int i = 0; i < kIterations; ++i) {
    at::Tensor next = view(matrices_[(i + 1) % 2], side, length);
    at::mm_out(gram, now, now.t());
    at::addmm_out(factor, gram, gram, gram, /*beta=*/kB, /*alpha=*/kC);
    at::addmm_out(next, now, factor, now, /*beta=*/kA);
    now = next;
  }
  return rows > columns ? now.t() : now;
}

/// Updates matrix i. With found_inf the device decides: buffer and weights then keep their bits.
void Muon::update_matrix(const FusedArguments& a, size_t i) const {
  const at::Tensor &param = a.params[i], &gradient = a.gradients[i], &buffer = a.state[0][i];
  if (param.numel() == 0) return;  // another rank's
  at::Tensor update = view_like(update_, param);
  const at::Tensor skip = a.found_inf ? a.found_inf->to(at::kBool) : at::Tensor();
  if (skip.defined()) {
    at::lerp_out(update, buffer, gradient, 1 - momentum_);
    at::where_out(const_cast<at::Tensor&>(buffer), skip, buffer, update);
  } else {
    buffer.lerp_(gradient, 1 - momentum_);
  }
  if (nesterov_ != 0) {
    at::lerp_out(update, gradient, buffer, momentum_);
  } else {
    update.copy_(buffer);
  }
  const at::Tensor direction = orthogonal(update);
  const double factor = rate_factor(param, match_rms_adamw_ != 0);
  if (!skip.defined() && !a.device_lr.defined()) {
    param.mul_(1 - a.lr * a.weight_decay);
    param.add_(direction, -a.lr * factor);
    return;
  }
  const at::Tensor lr = a.device_lr.defined() ? a.device_lr : at::full({}, a.lr, update.options());
  at::Tensor shrink = 1 - lr * a.weight_decay;
  update.copy_(direction).mul_(lr * -factor);
  if (skip.defined()) {
    update.masked_fill_(skip, 0);
    shrink.masked_fill_(skip, 1);
  }
  param.mul_(shrink).add_(update);
}

}  // namespace trainkit
