#include "nn/gpu/gpu_linear_cross_entropy.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>

#include "core/tensors/recorded.h"
#include "nn/cpu/float_product.h"
#include "nn/gpu/fused_ops.h"
#include "nn/gpu/run_kernel.h"

namespace trainkit::detail {
namespace {

// Note [The output layer on a GPU]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// cuBLAS has no fast kernels for products whose sizes are not multiples of 8, such as GPT-2's vocabulary of 50257: on
// an H200 they take four times as long, for the logits and for both gradients. The weight is therefore copied to a
// matrix with zeros up to the next multiple of kColumns. The logits of the added classes are zeros, and so are their
// gradients, which no one reads.
//
// kRows rows at a time go through the product, the loss and its gradient, which replaces the logits in their place.
// The memory is that of kRows rows for any number of rows, which memory plans assume. A piece must be large: each adds
// its product to the gradient of the weight, (C, D) float32, which costs as much time as reading and writing it.
//
// Forward computes the gradient of the sum of the losses, in bfloat16 or float16 without a factor: values are in -1..1,
// where float16 needs no loss scaling. Backward multiplies by 1 / count and by the incoming gradient, which is on the
// device.

constexpr int64_t kRows = 2048, kLeastClasses = 1024, kAligned = 8, kColumns = 64;

/// Writes the losses of rows; replaces logits by their gradients if `differentiates`.
void run_row_losses(const at::Tensor& logits, const at::Tensor& target, int64_t ignore_index, bool differentiates,
                    const at::Tensor& losses) {
  recorded("trainkit::cross_entropy", {logits, target}, [&] {
    run_on(logits.device(),
           RowLossArguments{.rows = logits.size(0),
                            .classes = logits.size(1),
                            .stride = logits.stride(0),
                            .ignore_index = ignore_index,
                            .logits = writable(logits),
                            .target = target.const_data_ptr<int64_t>(),
                            .losses = floats(losses),
                            .differentiates = differentiates},
           {Number::kFloat, *number_of(logits.scalar_type())});
    return losses;
  });
}

/// Returns the weight in the products' dtype, with rows of zeros up to a number that cuBLAS multiplies fast.
at::Tensor aligned_weight(const at::Tensor& weight, at::ScalarType type) {
  const int64_t classes = weight.size(0);
  if (classes % kAligned == 0) return weight.to(type);
  at::Tensor aligned =
      at::empty({ceil_div(classes, kColumns) * kColumns, weight.size(1)}, weight.options().dtype(type));
  aligned.narrow(0, 0, classes).copy_(weight);
  aligned.narrow(0, classes, aligned.size(0) - classes).zero_();
  return aligned;
}

}  // namespace

bool has_gpu_linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& target) {
  if (!runs_gpu_operations(hidden) || hidden.dim() != 2 || weight.dim() != 2) return false;
  const bool is_autocast = at::autocast::is_autocast_enabled(hidden.device().type());
  const bool have_types = number_of(hidden.scalar_type()) && number_of(weight.scalar_type()) &&
                          (is_autocast || hidden.scalar_type() == weight.scalar_type());
  return have_types && number_of(product_type(hidden)) && hidden.numel() > 0 && hidden.size(1) == weight.size(1) &&
         weight.size(0) >= kLeastClasses && weight.device() == hidden.device() && target.device() == hidden.device() &&
         target.scalar_type() == at::kLong && target.dim() == 1 && target.size(0) == hidden.size(0) &&
         target.is_contiguous();
}

GpuHeadResult gpu_linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& target,
                                       int64_t ignore_index, bool for_hidden, bool for_weight) {
  const at::ScalarType type = product_type(hidden);
  const bool is_autocast = at::autocast::is_autocast_enabled(hidden.device().type());
  const c10::AutoGradMode no_grad(false);
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const int64_t rows = hidden.size(0), classes = weight.size(0);
  const at::Tensor x = hidden.to(type).contiguous(), w = aligned_weight(weight, type);
  const auto floats_there = x.options().dtype(at::kFloat);
  GpuHeadResult result;
  result.loss = at::empty({}, is_autocast ? floats_there : hidden.options());
  result.inverse_count = at::empty({}, floats_there);
  if (for_hidden) result.hidden = at::empty(x.sizes(), x.options());
  const at::Tensor d_weight = for_weight ? at::empty(w.sizes(), floats_there) : at::Tensor();
  const at::Tensor room = at::empty({kRows, w.size(0)}, x.options()), losses = at::empty({rows}, floats_there);
  for (int64_t begin = 0; begin < rows; begin += kRows) {
    const int64_t size = std::min(kRows, rows - begin);
    const at::Tensor piece = x.narrow(0, begin, size), wanted = target.narrow(0, begin, size);
    at::Tensor logits = room.narrow(0, 0, size);
    at::mm_out(logits, piece, w.t());
    run_row_losses(logits.narrow(1, 0, classes), wanted, ignore_index, for_hidden || for_weight,
                   losses.narrow(0, begin, size));
    if (for_hidden) {
      at::Tensor d_piece = result.hidden.narrow(0, begin, size);
      at::mm_out(d_piece, logits, w);
    }
    if (for_weight) float_product_out(d_weight, logits.t(), piece, /*adds=*/begin > 0);
  }
  if (for_weight) result.weight = d_weight.narrow(0, 0, classes);
  run_on(x.device(),
         MeanLossArguments{.rows = rows,
                           .ignore_index = ignore_index,
                           .target = target.const_data_ptr<int64_t>(),
                           .losses = floats(losses),
                           .inverse_count = floats(result.inverse_count),
                           .loss = writable(result.loss)},
         numbers_of(result.loss, x));
  return result;
}

}  // namespace trainkit::detail
