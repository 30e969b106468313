#include "trainkit/rl/running_normalizer.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "trainkit/core/status.h"
#include "trainkit/distributed/process_group.h"

namespace trainkit {

RunningNormalizerImpl::RunningNormalizerImpl(const RunningNormalizerOptions& options) : options(options) {
  TORCH_CHECK_VALUE(options.eps >= 0, "RunningNormalizer: eps must be >= 0, got ", options.eps);
  TORCH_CHECK_VALUE(options.clip >= 0, "RunningNormalizer: clip must be >= 0, got ", options.clip);
  reset();
}

void RunningNormalizerImpl::reset() {
  mean = register_buffer("mean", at::zeros(options.shape, at::kDouble));
  variance = register_buffer("variance", at::ones(options.shape, at::kDouble));
  count = register_buffer("count", at::zeros({}, at::kDouble));
}

at::Tensor RunningNormalizerImpl::forward(const at::Tensor& rows) const {
  const at::Tensor scale = (variance + options.eps).rsqrt();
  const at::Tensor normal = (rows - mean.to(rows.dtype())) * scale.to(rows.dtype());
  return options.clip > 0 ? normal.clamp(-options.clip, options.clip) : normal;
}

absl::Status RunningNormalizerImpl::update(const at::Tensor& rows, ProcessGroup* group) {
  const at::NoGradGuard no_grad;
  const auto numbers = static_cast<int64_t>(options.shape.size());
  TORCH_CHECK_VALUE(rows.dim() >= numbers && rows.sizes().slice(rows.dim() - numbers) == options.shape,
                    "RunningNormalizer: rows must have shape (..., ", at::IntArrayRef(options.shape), "), got ",
                    rows.sizes());
  const int64_t width = mean.numel();
  const int64_t own = width == 0 ? 0 : rows.numel() / width;
  const at::Tensor x = rows.detach().to(mean.device(), at::kDouble).reshape({own, width});
  // The mean of the new rows on all ranks first, then their squared deviations from it.
  const at::Tensor sums = at::cat({x.sum(0), at::full({1}, static_cast<double>(own), count.options())});
  if (group) TRAINKIT_RETURN_IF_ERROR(group->all_reduce(sums, "all_reduce(running mean)"));
  const at::Tensor new_count = sums[width];
  const at::Tensor new_mean = sums.slice(0, 0, width) / new_count.clamp_min(1);
  const at::Tensor squares = (x - new_mean).square().sum(0);
  if (group) TRAINKIT_RETURN_IF_ERROR(group->all_reduce(squares, "all_reduce(running variance)"));

  const at::Tensor total = (count + new_count).clamp_min(1);
  const at::Tensor delta = new_mean.view_as(mean) - mean;
  const at::Tensor all_squares =
      variance * count + squares.view_as(mean) + delta.square() * (count * new_count / total);
  const at::Tensor is_new = new_count > 0;
  mean.add_(delta * (new_count / total));
  variance.copy_(at::where(is_new, all_squares / total, variance));
  count.add_(new_count);
  return absl::OkStatus();
}

}  // namespace trainkit
