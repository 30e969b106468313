#include "core/tensor_lists.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <utility>

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

bool has_list_kernels(at::TensorList tensors) {
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

void unscale_by_kernel([[maybe_unused]] const std::vector<at::Tensor>& tensors,
                       [[maybe_unused]] const at::Tensor& found_inf, [[maybe_unused]] const at::Tensor& value) {
#ifdef TRAINKIT_WITH_CUDA
  launch_for(tensors, [&](const TensorList& some, size_t, void* stream) {
    return launch_unscale(some, value.const_data_ptr<float>(), found_inf.mutable_data_ptr<float>(), stream);
  });
#endif
}

at::Tensor norm_by_kernel([[maybe_unused]] const std::vector<at::Tensor>& tensors) {
  at::Tensor norm = at::empty({}, tensors.front().options());
#ifdef TRAINKIT_WITH_CUDA
  std::vector<Chunks<>> chunks;
  int64_t count = 0;
  for (size_t first = 0; first < tensors.size(); first += kMostTensors) {
    int64_t sizes[kMostTensors];
    int some = 0;
    for (size_t i = first; i < tensors.size() && some < kMostTensors; ++i) sizes[some++] = tensors[i].numel();
    count += chunks.emplace_back(Chunks<>::of(sizes, some)).first[some];
  }
  const at::Tensor sums = at::empty({count}, norm.options());
  float* next = sums.mutable_data_ptr<float>();
  launch_for(tensors, [&](const TensorList& some, size_t first, void* stream) {
    const Chunks<>& divided = chunks[first / kMostTensors];
    return launch_squares(some, divided, std::exchange(next, next + divided.first[some.count]), stream);
  });
  const c10::cuda::CUDAGuard guard(norm.device());
  C10_CUDA_CHECK(
      static_cast<cudaError_t>(launch_norm(sums.const_data_ptr<float>(), count, norm.mutable_data_ptr<float>(),
                                           c10::cuda::getCurrentCUDAStream().stream())));
#endif
  return norm;
}

/// Returns the end of the tensors from `begin` on that one launch copies; `begin` if a kernel cannot copy the first
/// one.
static size_t end_of_copies([[maybe_unused]] const std::vector<at::Tensor>& to,
                            [[maybe_unused]] const std::vector<at::Tensor>& from, size_t begin) {
#ifdef TRAINKIT_WITH_CUDA
  const at::Device device = to[begin].device();
  if (!device.is_cuda() || !has_gpu_kernels(device)) return begin;
  size_t end = begin;
  while (end < to.size() && end - begin < kMostTensors && to[end].device() == device &&
         to[end].is_non_overlapping_and_dense() && from[end].device() == device &&
         from[end].scalar_type() == to[end].scalar_type() && from[end].strides() == to[end].strides()) {
    ++end;
  }
  return end;
#else
  return begin;
#endif
}

void copy_together(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from,
                   const at::Tensor& condition) {
  for (size_t begin = 0; begin < to.size();) {
    const at::Device device = to[begin].device();
    const size_t end = end_of_copies(to, from, begin);
    const at::Tensor decides =
        condition.defined() ? condition.to(device, /*non_blocking=*/device.is_cuda()) : condition;
    if (end == begin) {
      to[begin].copy_(decides.defined() ? at::where(decides.ne(0), from[begin], to[begin]) : from[begin],
                      /*non_blocking=*/true);
      ++begin;
      continue;
    }
#ifdef TRAINKIT_WITH_CUDA
    const c10::cuda::CUDAGuard guard(device);
    CopyList list;
    for (; begin < end; ++begin, ++list.count) {
      list.from[list.count] = from[begin].const_data_ptr();
      list.to[list.count] = to[begin].mutable_data_ptr();
      list.sizes[list.count] = static_cast<int64_t>(to[begin].nbytes());
    }
    C10_CUDA_CHECK(
        static_cast<cudaError_t>(launch_copy(list, decides.defined() ? decides.const_data_ptr<float>() : nullptr,
                                             c10::cuda::getCurrentCUDAStream().stream())));
#endif
  }
}

std::vector<at::Tensor> cast_together(const std::vector<at::Tensor>& tensors, at::ScalarType type) {
  constexpr int64_t kAligned = 64;
  const auto room = [](const at::Tensor& tensor) { return (tensor.numel() + kAligned - 1) / kAligned * kAligned; };
  int64_t total = 0;
  for (const at::Tensor& tensor : tensors) total += room(tensor);
  const at::Tensor all = at::empty({total}, tensors.front().options().dtype(type));
  std::vector<at::Tensor> parts;
  int64_t begin = 0;
  for (const at::Tensor& tensor : tensors) {
    parts.push_back(all.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
    begin += room(tensor);
  }
#ifdef TRAINKIT_WITH_CUDA
  if (has_list_kernels(tensors)) {
    launch_for(tensors, [&](const TensorList& some, size_t first, void* stream) {
      CastList list;
      for (; list.count < some.count; ++list.count) {
        list.from[list.count] = some.data[list.count];
        list.to[list.count] = parts[first + static_cast<size_t>(list.count)].mutable_data_ptr();
        list.sizes[list.count] = some.sizes[list.count];
      }
      return launch_cast(list, type == at::kBFloat16, stream);
    });
    return parts;
  }
#endif
  for (size_t i = 0; i < tensors.size(); ++i) parts[i].copy_(tensors[i]);
  return parts;
}

}  // namespace trainkit::detail
