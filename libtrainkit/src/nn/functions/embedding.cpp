#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "core/tensors/recorded.h"
#include "nn/gpu/fused_ops.h"
#include "nn/gpu/run_kernel.h"
#include "trainkit/nn/functional.h"

namespace trainkit {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct EmbeddingFunction : torch::autograd::Function<EmbeddingFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& ids, const at::Tensor& weight) {
    context->saved_data["rows"] = weight.size(0);
    context->save_for_backward({ids});
    return at::embedding(weight, ids);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor ids = context->get_saved_variables()[0], d_out = gradients[0].contiguous();
    const int64_t rows = context->saved_data["rows"].toInt();
    if (c10::GradMode::is_enabled()) {  // LibTorch's gradient has a derivative
      return {at::Tensor(), at::embedding_dense_backward(d_out, ids, rows, /*padding_idx=*/-1, false)};
    }
    at::Tensor d_weight = at::zeros({rows, d_out.size(-1)}, d_out.options());
    detail::recorded("trainkit::embedding_backward", {d_out, ids}, [&] {
      detail::run_on(ids.device(),
                     detail::EmbeddingGradientArguments{.lookups = ids.numel(),
                                                        .width = d_out.size(-1),
                                                        .ids = ids.const_data_ptr<int64_t>(),
                                                        .d_out = d_out.const_data_ptr<float>(),
                                                        .d_weight = detail::floats(d_weight)},
                     detail::numbers_of(d_out, d_out));
      return d_weight;
    });
    return {at::Tensor(), d_weight};
  }
};

bool has_gpu_embedding(const at::Tensor& ids, const at::Tensor& weight) {
  return c10::GradMode::is_enabled() && weight.requires_grad() && detail::runs_gpu_operations(weight) &&
         weight.dim() == 2 && weight.size(1) > 0 && weight.scalar_type() == at::kFloat &&
         ids.scalar_type() == at::kLong && ids.is_contiguous() && ids.device() == weight.device() && ids.numel() > 0 &&
         ids.numel() <= detail::kMostLookups;
}

}  // namespace

at::Tensor embedding_lookup(const at::Tensor& ids, const at::Tensor& weight, bool sparse) {
  if (sparse) return at::embedding(weight, ids, /*padding_idx=*/-1, /*scale_grad_by_freq=*/false, /*sparse=*/true);
  return has_gpu_embedding(ids, weight) ? EmbeddingFunction::apply(ids, weight) : at::embedding(weight, ids);
}

}  // namespace trainkit
