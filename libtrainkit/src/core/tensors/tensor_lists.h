#pragma once
/// Operations on many tensors of a GPU at once, with less work of the host than LibTorch's. All but the norm, which
/// adds in another order, are bitwise identical to LibTorch's.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace trainkit::detail {

/// Returns min(1, max_norm / (norm + 1e-6)): the factor for tensors of this norm, which then have at most `max_norm`.
at::Tensor clip_factor(const at::Tensor& norm, double max_norm);

/// Returns whether this build's kernels take the tensors: there is one, and all are dense float32 on the same GPU,
/// which has kernels.
bool has_list_kernels(at::TensorList tensors);

/// Multiplies tensors that have kernels in place by `value`, a float32 scalar on their device, or with `max_norm` by
/// clip_factor(value, *max_norm). One launch for up to 128 tensors; allocates nothing, and costs little if the factor
/// is 1.
void scale_by_kernel(const std::vector<at::Tensor>& tensors, const at::Tensor& value,
                     std::optional<double> max_norm = std::nullopt);

/// Multiplies tensors that have kernels by `value`, and sets `found_inf` to 1 if a result is not finite; both are
/// float32 scalars on their device. One launch for up to 128 tensors.
void unscale_by_kernel(const std::vector<at::Tensor>& tensors, const at::Tensor& found_inf, const at::Tensor& value);

/// Returns the norm of all values of tensors that have kernels, a float32 scalar on their device. Always added in the
/// same order. Two launches for up to 128 tensors.
at::Tensor norm_by_kernel(const std::vector<at::Tensor>& tensors);

/// Returns the 2-norm of each tensor, a scalar of its dtype on its device. Those of tensors of more than `large`
/// elements on the CPU are added up in float64 from pieces of a sixteenth of it, since LibTorch adds all squares of a
/// tensor in float32: 2^28 ones have the norm 11585 there instead of 16384. The norm of a smaller tensor has LibTorch's
/// bits.
std::vector<at::Tensor> norms_of(const std::vector<at::Tensor>& tensors, int64_t large = int64_t{1} << 24);

/// Copies each tensor of `from` to the one of `to` with the same sizes, strides, dtype and device, if `condition`, a
/// float32 scalar, is undefined or not 0. Waits for a device only for a tensor on the CPU. On a GPU that has kernels,
/// one launch for up to 128 tensors.
void copy_together(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from,
                   const at::Tensor& condition = {});

/// Returns float32 tensors in `type`, bfloat16 or float16: views of one allocation, which begin at multiples of 128
/// bytes. One launch if they have kernels.
std::vector<at::Tensor> cast_together(const std::vector<at::Tensor>& tensors, at::ScalarType type);

}  // namespace trainkit::detail
