#pragma once
/// Operations on many tensors of a GPU at once, with the bits of LibTorch's operations and less work of the host.

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

namespace trainkit::detail {

/// Returns min(1, max_norm / (norm + 1e-6)): the factor for tensors of this norm, which then have at most `max_norm`.
at::Tensor clip_factor(const at::Tensor& norm, double max_norm);

/// Returns whether this build's kernels take the tensors: there is one, and all are dense float32 on the same GPU,
/// which has kernels.
bool has_list_kernels(const std::vector<at::Tensor>& tensors);

/// Multiplies tensors that have kernels in place by `value`, a float32 scalar on their device, or with `max_norm` by
/// clip_factor(value, *max_norm). One launch for up to 128 tensors; allocates nothing, and costs little if the factor
/// is 1.
void scale_by_kernel(const std::vector<at::Tensor>& tensors, const at::Tensor& value,
                     std::optional<double> max_norm = std::nullopt);

/// As at::stack(). At least one; with a kernel if there is one for them.
at::Tensor stack_scalars(const std::vector<at::Tensor>& scalars);

}  // namespace trainkit::detail
