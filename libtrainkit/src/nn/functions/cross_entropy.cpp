#include <ATen/autocast_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "core/device/gpu_operations.h"
#include "core/libtorch/autograd_nodes.h"
#include "core/machine/parallel.h"
#include "core/machine/shapes_only.h"
#include "core/tensors/vectors.h"
#include "nn/functions/cross_entropy_rows.h"
#include "nn/gpu/fused_ops.h"
#include "trainkit/nn/functional.h"

namespace trainkit {
namespace {

using detail::kLanes;

constexpr int64_t kBlock = 2048;              // floats per block; fits into the L1 cache
constexpr int64_t kGrain = int64_t{1} << 15;  // minimum logits per task

/// Returns the maximum of x[0..n), computed in lanes because the compiler may not reorder a plain loop. Ignores NaNs.
TRAINKIT_INLINE float max_of(const float* x, int64_t n) {
  float lanes[kLanes];
  std::fill(lanes, lanes + kLanes, -std::numeric_limits<float>::infinity());
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t k = 0; k < kLanes; ++k) lanes[k] = lanes[k] < x[i + k] ? x[i + k] : lanes[k];
  }
  for (int64_t k = 0; i < n; ++i, ++k) lanes[k] = lanes[k] < x[i] ? x[i] : lanes[k];
  return *std::max_element(lanes, lanes + kLanes);
}

/// Computes to[i] = e^(x[i] - shift). @return the sum.
TRAINKIT_INLINE float exp_and_sum(const float* x, int64_t n, float shift, float* to) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t k = 0; k < kLanes; ++k) {
      to[i + k] = x[i + k] - shift;
      detail::exp_of(to[i + k]);
      lanes[k] += to[i + k];
    }
  }
  for (int64_t k = 0; i < n; ++i, ++k) {
    to[i] = x[i] - shift;
    detail::exp_of(to[i]);
    lanes[k] += to[i];
  }
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}

TRAINKIT_INLINE void multiply(float* x, int64_t n, float factor) {
  for (int64_t i = 0; i < n; ++i) x[i] *= factor;
}

/// Computes the losses of rows [begin, end) and, with `gradient`, the gradient of their sum times `scale`.
TRAINKIT_VECTORIZED void rows_loss(const float* logits, const int64_t* target, int64_t classes, int64_t ignore_index,
                                   int64_t begin, int64_t end, float* losses, float* gradient, float scale) {
  float block[kBlock];
  for (int64_t row = begin; row < end; ++row) {
    const float* x = logits + row * classes;
    float* g = gradient ? gradient + row * classes : nullptr;
    const int64_t wanted = target[row];
    if (wanted == ignore_index) {
      losses[row] = 0;
      if (g) std::fill(g, g + classes, 0.0f);
      continue;
    }
    const float wanted_logit = x[wanted];  // read first: `gradient` may be `logits`
    const float highest = max_of(x, classes);
    float sum = 0;
    for (int64_t at = 0; at < classes; at += kBlock) {
      sum += exp_and_sum(x + at, std::min(kBlock, classes - at), highest, g ? g + at : block);
    }
    losses[row] = std::log(sum) - (wanted_logit - highest);
    if (!g) continue;
    multiply(g, classes, scale / sum);
    g[wanted] -= scale;
  }
}

// Note [Gradient made in forward]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// The gradient of the mean loss, (softmax - one_hot) / count, needs the exponentials that forward computes. It is
// therefore made in forward, in the tensor that LibTorch would keep for log_softmax, so backward reads no logits.
// Backward multiplies it by the incoming gradient: not at all if that is 1, and in place unless the graph is kept,
// because the tensor is used again then. A second derivative would need the logits, which are not saved; backward with
// create_graph throws.

struct CrossEntropyBackward final : torch::autograd::Node {
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    TORCH_CHECK(gradient.defined(), "cross_entropy: backward ran before; use retain_graph to run it again");
    TORCH_CHECK_NOT_IMPLEMENTED(!c10::GradMode::is_enabled(),
                                "cross_entropy has no second derivative (create_graph); use at::cross_entropy_loss");
    if (!grads[0].defined()) return {at::Tensor()};
    return {detail::times_incoming(gradient, grads[0])};
  }
  void release_variables() override { gradient.reset(); }
  std::string name() const override { return "CrossEntropyBackward"; }

  at::Tensor gradient;  // of the loss with respect to the logits
};

bool has_fast_path(const at::Tensor& logits, const at::Tensor& target) {
  if (detail::GpuOperations::wanted()) return false;  // use LibTorch's operation, as on a GPU without our kernels
  return logits.is_cpu() && logits.scalar_type() == at::kFloat && logits.dim() == 2 && logits.is_contiguous() &&
         detail::is_row_target(target, logits.size(0)) && logits.numel() > 0;
}

bool is_autocast_enabled_on(const at::Tensor& x) {
  return (x.is_cpu() || x.is_cuda()) && at::autocast::is_autocast_enabled(x.device().type());
}

}  // namespace

namespace detail {

at::Tensor times_factor(at::Tensor& gradient, const at::Tensor& factor) {
  if (!gradient.defined()) return gradient;
  return torch::autograd::get_current_graph_task_keep_graph() ? gradient.mul(factor) : gradient.mul_(factor);
}

at::Tensor times_incoming(at::Tensor& gradient, const at::Tensor& incoming) {
  return !gradient.defined() || host_value(incoming) == 1 ? gradient : times_factor(gradient, incoming);
}

bool is_row_target(const at::Tensor& target, int64_t rows) {
  return target.is_cpu() && target.scalar_type() == at::kLong && target.dim() == 1 && target.is_contiguous() &&
         target.size(0) == rows;
}

int64_t count_targets(const int64_t* target, int64_t rows, int64_t classes, int64_t ignore_index) {
  int64_t count = 0;
  for (int64_t row = 0; row < rows; ++row) {
    if (target[row] == ignore_index) continue;
    TORCH_CHECK_INDEX(target[row] >= 0 && target[row] < classes, "cross_entropy: target ", target[row], " of row ", row,
                      " is out of range for ", classes, " classes");
    ++count;
  }
  return count;
}

void cross_entropy_rows(const float* logits, const int64_t* target, int64_t rows, int64_t classes, int64_t ignore_index,
                        float* losses, float* gradient, float scale) {
  if (shapes_only()) return;
  parallel_for(0, rows, std::max<int64_t>(1, kGrain / classes), [&](int64_t begin, int64_t end) {
    rows_loss(logits, target, classes, ignore_index, begin, end, losses, gradient, scale);
  });
}

}  // namespace detail

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target, int64_t ignore_index,
                         const at::Tensor& weight, double label_smoothing) {
  TORCH_CHECK_VALUE(label_smoothing >= 0 && label_smoothing <= 1, "label_smoothing must be in [0, 1], got ",
                    label_smoothing);
  if (weight.defined() || label_smoothing > 0) {
    // Under autocast the loss is computed in float32: the class weights must not be rounded to 16 bits before.
    const bool widens = at::isReducedFloatingType(logits.scalar_type()) && is_autocast_enabled_on(logits);
    const at::Tensor scores = widens ? logits.to(at::kFloat) : logits;
    std::optional<at::Tensor> class_weight;
    if (weight.defined()) class_weight = weight.to(scores.scalar_type());
    return at::cross_entropy_loss(scores, target, class_weight, at::Reduction::Mean, ignore_index, label_smoothing);
  }
  if (detail::has_gpu_cross_entropy(logits, target)) return detail::gpu_cross_entropy(logits, target, ignore_index);
  if (logits.is_cpu() && logits.scalar_type() == at::kBFloat16 && at::autocast::is_autocast_enabled(at::kCPU)) {
    return cross_entropy(logits.to(at::kFloat), target, ignore_index);  // as autocast does for LibTorch's
  }
  if (!has_fast_path(logits, target)) {
    return at::cross_entropy_loss(logits, target, /*weight=*/{}, at::Reduction::Mean, ignore_index);
  }
  const int64_t rows = logits.size(0), classes = logits.size(1);
  const auto* x = logits.const_data_ptr<float>();
  const auto* y = target.const_data_ptr<int64_t>();
  const int64_t count = detail::count_targets(y, rows, classes, ignore_index);
  const bool differentiable = c10::GradMode::is_enabled() && logits.requires_grad();

  at::Tensor loss, gradient;
  {
    const c10::AutoGradMode no_grad(false);
    loss = at::empty({}, logits.options());
    if (differentiable) gradient = at::empty_like(logits);
  }
  float* g = differentiable ? gradient.mutable_data_ptr<float>() : nullptr;
  const float scale = 1.0f / static_cast<float>(count);
  std::vector<float> losses(rows);
  detail::cross_entropy_rows(x, y, rows, classes, ignore_index, losses.data(), g, scale);
  double sum = 0;
  for (const float each : losses) sum += each;
  *loss.mutable_data_ptr<float>() = static_cast<float>(sum / static_cast<double>(count));
  if (!differentiable) return loss;

  // See Note [Gradient made in forward].
  const auto node = detail::make_node<CrossEntropyBackward>();
  node->gradient = std::move(gradient);
  node->set_next_edges(torch::autograd::collect_next_edges(logits));
  torch::autograd::set_history(loss, node);
  return loss;
}

}  // namespace trainkit
