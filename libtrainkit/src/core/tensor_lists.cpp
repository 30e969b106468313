#include "core/tensor_lists.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>

#include <algorithm>

#include "core/gpu_kernel_support.h"
#ifdef TRAINKIT_WITH_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "core/tensor_list_kernels.h"
#endif

namespace trainkit::detail {
namespace {

#ifdef TRAINKIT_WITH_CUDA
/// Calls launch(some tensors, position of the first one, stream) until all tensors had their turn.
template <typename Launch>
void launch_for(const std::vector<at::Tensor>& tensors, const Launch& launch) {
  const c10::cuda::CUDAGuard guard(tensors.front().device());
  for (size_t first = 0; first < tensors.size(); first += kMostTensors) {
    TensorList some;
    for (size_t i = first; i < tensors.size() && some.count < kMostTensors; ++i) {
      some.data[some.count] = static_cast<float*>(tensors[i].data_ptr());
      some.sizes[some.count++] = tensors[i].numel();
    }
    C10_CUDA_CHECK(static_cast<cudaError_t>(launch(some, first, c10::cuda::getCurrentCUDAStream().stream())));
  }
}
#endif

}  // namespace

at::Tensor clip_factor(const at::Tensor& norm, double max_norm) {
  return norm.add(1e-6).reciprocal_().mul_(max_norm).clamp_max_(1.0);
}

bool has_list_kernels(const std::vector<at::Tensor>& tensors) {
  if (tensors.empty() || !tensors.front().is_cuda()) return false;
  const at::Device device = tensors.front().device();
  const auto fits = [&](const at::Tensor& tensor) {
    return tensor.device() == device && tensor.scalar_type() == at::kFloat && tensor.is_non_overlapping_and_dense();
  };
  return std::all_of(tensors.begin(), tensors.end(), fits) && has_gpu_kernels(device);
}

void scale_by_kernel([[maybe_unused]] const std::vector<at::Tensor>& tensors, [[maybe_unused]] const at::Tensor& value,
                     [[maybe_unused]] std::optional<double> max_norm) {
#ifdef TRAINKIT_WITH_CUDA
  launch_for(tensors, [&](const TensorList& some, size_t, void* stream) {
    return launch_scale(some, value.const_data_ptr<float>(), static_cast<float>(max_norm.value_or(-1)), stream);
  });
#endif
}

at::Tensor stack_scalars(const std::vector<at::Tensor>& scalars) {
#ifdef TRAINKIT_WITH_CUDA
  if (has_list_kernels(scalars)) {
    const at::Tensor out = at::empty({static_cast<int64_t>(scalars.size())}, scalars.front().options());
    launch_for(scalars, [&](const TensorList& some, size_t first, void* stream) {
      return launch_gather(some, static_cast<float*>(out.data_ptr()) + first, stream);
    });
    return out;
  }
#endif
  return at::stack(scalars);
}

}  // namespace trainkit::detail
