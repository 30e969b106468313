#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "core/device/gpu_operations.h"
#include "core/libtorch/autograd_nodes.h"
#include "nn/functions/cross_entropy_rows.h"
#include "nn/gpu/gpu_linear_cross_entropy.h"
#include "trainkit/nn/functional.h"

namespace trainkit {
namespace {

// Note [Logits in pieces]
// ~~~~~~~~~~~~~~~~~~~~~~~
// The logits of a language model are its largest tensor: rows x vocabulary, several times (their gradient, and a
// float32 copy under autocast). Here one piece of rows at a time goes through the product, the loss and its gradient,
// so only one piece of logits exists. The gradients of the hidden states and of the weight are made at once, in
// forward; backward hands them on, and multiplies them only if the incoming gradient is not 1.
//
// A piece has kRows rows: enough that the products are limited by the processor and not by reading the weight and
// adding to its gradient once per piece, and few enough that a step of any useful batch has several pieces. Its memory
// is then the same for all batch sizes, which memory plans assume. Few classes make no large logits; they use the
// separate operations. The pieces depend on the shapes alone, so the bits do too.

constexpr int64_t kRows = 256, kLeastClasses = 4096;

/// Gradients of the mean loss; undefined if not needed.
struct Gradients {
  at::Tensor hidden, weight;  // (N, D), (C, D)
};

struct LinearCrossEntropyBackward final : torch::autograd::Node {
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    TORCH_CHECK(!is_used, "linear_cross_entropy: backward ran before; use retain_graph to run it again");
    TORCH_CHECK_NOT_IMPLEMENTED(!c10::GradMode::is_enabled(),
                                "linear_cross_entropy has no second derivative (create_graph); use "
                                "at::cross_entropy_loss of at::linear");
    if (!grads[0].defined()) return {at::Tensor(), at::Tensor()};
    if (inverse_count.defined()) {
      const at::Tensor factor = grads[0] * inverse_count;  // stays on the device: reading it would wait
      const auto times = [&](at::Tensor& gradient, at::ScalarType type) {
        return gradient.defined() ? detail::times_factor(gradient, factor).to(type) : gradient;
      };
      return {times(gradients.hidden, types[0]), times(gradients.weight, types[1])};
    }
    return {detail::times_incoming(gradients.hidden, grads[0]), detail::times_incoming(gradients.weight, grads[0])};
  }
  void release_variables() override {
    gradients = {};
    is_used = true;
  }
  std::string name() const override { return "LinearCrossEntropyBackward"; }

  Gradients gradients;
  at::Tensor inverse_count;                  // of a GPU: the gradients are those of the sum
  std::array<at::ScalarType, 2> types = {};  // and have these dtypes in the end
  bool is_used = false;
};

void record_node(const at::Tensor& loss, const at::Tensor& hidden, const at::Tensor& weight,
                 const detail::NodePointer<LinearCrossEntropyBackward>& node) {
  node->set_next_edges(torch::autograd::collect_next_edges(hidden, weight));
  torch::autograd::set_history(loss, node);
}

/// Dtype of the products: bfloat16 under autocast, else that of the inputs; kUndefined if no fast path has it.
at::ScalarType product_type(const at::Tensor& hidden, const at::Tensor& weight) {
  if (at::autocast::is_autocast_enabled(at::kCPU)) {
    const bool is_bf16 = at::autocast::get_autocast_dtype(at::kCPU) == at::kBFloat16;
    return is_bf16 && weight.scalar_type() == at::kFloat ? at::kBFloat16 : at::ScalarType::Undefined;
  }
  const bool is_float = hidden.scalar_type() == at::kFloat && weight.scalar_type() == at::kFloat;
  return is_float ? at::kFloat : at::ScalarType::Undefined;
}

bool has_fast_path(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& target) {
  if (detail::GpuOperations::wanted()) return false;  // use the operations of a GPU
  return hidden.is_cpu() && weight.is_cpu() && hidden.dim() == 2 && weight.dim() == 2 &&
         hidden.size(1) == weight.size(1) && hidden.numel() > 0 && weight.size(0) >= kLeastClasses &&
         weight.is_contiguous() && detail::is_row_target(target, hidden.size(0)) &&
         product_type(hidden, weight) != at::ScalarType::Undefined;
}

/// Computes the mean loss, and the gradients that are wanted. See Note [Logits in pieces].
class Pieces {
 public:
  Pieces(const at::Tensor& hidden, const at::Tensor& weight, at::ScalarType type)
      : hidden_(hidden.to(type).contiguous()), weight_(weight.to(type)), is_float_(type == at::kFloat) {}

  double run(const at::Tensor& target, int64_t ignore_index, bool for_hidden, bool for_weight, Gradients& gradients) {
    const int64_t rows = hidden_.size(0), classes = weight_.size(0), width = hidden_.size(1);
    const auto* y = target.const_data_ptr<int64_t>();
    const int64_t count = detail::count_targets(y, rows, classes, ignore_index);
    const int64_t piece = std::min(rows, kRows);
    const auto floats = hidden_.options().dtype(at::kFloat);
    const bool differentiable = for_hidden || for_weight;
    if (for_hidden) gradients.hidden = at::empty({rows, width}, hidden_.options());
    if (for_weight) gradients.weight = at::empty({classes, width}, floats);
    const at::Tensor logits = at::empty({piece, classes}, floats);
    std::vector<float> losses(static_cast<size_t>(rows));
    for (int64_t begin = 0; begin < rows; begin += piece) {
      const int64_t size = std::min(piece, rows - begin);
      const at::Tensor x = hidden_.narrow(0, begin, size), z = logits.narrow(0, 0, size);
      multiply(z, x, weight_.t());
      auto* const values = z.mutable_data_ptr<float>();
      detail::cross_entropy_rows(values, y + begin, size, classes, ignore_index, losses.data() + begin,
                                 differentiable ? values : nullptr, 1.0f / static_cast<float>(count));
      if (!differentiable) continue;
      const at::Tensor slope = is_float_ ? z : z.to(at::kBFloat16);
      if (for_hidden) {
        at::Tensor part = gradients.hidden.narrow(0, begin, size);
        at::mm_out(part, slope, weight_);
      }
      if (for_weight) add_product(gradients.weight, slope.t(), x, /*is_first=*/begin == 0);
    }
    double sum = 0;
    for (const float each : losses) sum += each;
    return sum / static_cast<double>(count);
  }

 private:
  /// Writes a b to `out`, a float32 tensor.
  void multiply(at::Tensor out, const at::Tensor& a, const at::Tensor& b) const {
    if (is_float_) {
      at::mm_out(out, a, b);
    } else {
      out.copy_(at::mm(a, b));
    }
  }
  /// Adds a b to `sum`, or writes it.
  void add_product(at::Tensor sum, const at::Tensor& a, const at::Tensor& b, bool is_first) const {
    if (is_first) return multiply(sum, a, b);
    if (is_float_) {
      at::addmm_out(sum, sum, a, b);
    } else {
      sum.add_(at::mm(a, b));
    }
  }

  at::Tensor hidden_, weight_;
  bool is_float_;
};

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& target,
                                int64_t ignore_index) {
  const bool records = c10::GradMode::is_enabled();
  const bool for_hidden = records && hidden.requires_grad(), for_weight = records && weight.requires_grad();
  if (detail::has_gpu_linear_cross_entropy(hidden, weight, target)) {
    detail::GpuHeadResult head =
        detail::gpu_linear_cross_entropy(hidden, weight, target, ignore_index, for_hidden, for_weight);
    if (!for_hidden && !for_weight) return head.loss;
    const auto node = detail::make_node<LinearCrossEntropyBackward>();
    node->gradients = {std::move(head.hidden), std::move(head.weight)};
    node->inverse_count = std::move(head.inverse_count);
    node->types = {hidden.scalar_type(), weight.scalar_type()};
    record_node(head.loss, hidden, weight, node);
    return head.loss;
  }
  if (!has_fast_path(hidden, weight, target)) {
    return cross_entropy(at::linear(hidden, weight), target, ignore_index);
  }
  Gradients gradients;
  at::Tensor loss;
  {
    const at::ScalarType type = product_type(hidden, weight);
    const c10::AutoGradMode no_grad(false);
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    loss = at::empty({}, hidden.options().dtype(at::kFloat));
    *loss.mutable_data_ptr<float>() =
        static_cast<float>(Pieces(hidden, weight, type).run(target, ignore_index, for_hidden, for_weight, gradients));
    if (for_hidden) gradients.hidden = gradients.hidden.to(hidden.scalar_type());
  }
  if (!for_hidden && !for_weight) return loss;
  const auto node = detail::make_node<LinearCrossEntropyBackward>();
  node->gradients = std::move(gradients);
  record_node(loss, hidden, weight, node);
  return loss;
}

}  // namespace trainkit
