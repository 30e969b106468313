#include "core/tensors/tensor_lists.h"

#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <utility>

#include "core/base/round_up.h"
#include "core/device/gpu_kernel_support.h"
#include "core/device/gpu_launch.h"
#ifdef TRAINKIT_WITH_CUDA
#include "core/tensors/tensor_list_kernels.h"
#endif

namespace trainkit::detail {
namespace {

#ifdef TRAINKIT_WITH_CUDA
/// Divides tensors among lists for one launch each.
std::vector<TensorList> lists_of(at::TensorList tensors) {
  std::vector<TensorList> lists((tensors.size() + kMostTensors - 1) / kMostTensors);
  for (size_t i = 0; i < tensors.size(); ++i) {
    TensorList& list = lists[i / kMostTensors];
    list.data[list.count] = static_cast<float*>(tensors[i].data_ptr());
    list.sizes[list.count++] = tensors[i].numel();
  }
  return lists;
}

/// Tells autograd that kernels changed a tensor: backward refuses a saved tensor that is not as it was.
void note_change(const at::Tensor& tensor) {
  if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
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
  const auto most = static_cast<float>(max_norm.value_or(-1));
  for (const TensorList& list : lists_of(tensors)) {
    launch_on(value.device(), [&](void* on) { return launch_scale(list, value.const_data_ptr<float>(), most, on); });
  }
  for (const at::Tensor& tensor : tensors) note_change(tensor);
#endif
}

void unscale_by_kernel([[maybe_unused]] const std::vector<at::Tensor>& tensors,
                       [[maybe_unused]] const at::Tensor& found_inf, [[maybe_unused]] const at::Tensor& value) {
#ifdef TRAINKIT_WITH_CUDA
  for (const TensorList& list : lists_of(tensors)) {
    launch_on(value.device(), [&](void* stream) {
      return launch_unscale(list, value.const_data_ptr<float>(), found_inf.mutable_data_ptr<float>(), stream);
    });
  }
  for (const at::Tensor& tensor : tensors) note_change(tensor);
#endif
}

at::Tensor norm_by_kernel([[maybe_unused]] const std::vector<at::Tensor>& tensors) {
  at::Tensor norm = at::empty({}, tensors.front().options());
#ifdef TRAINKIT_WITH_CUDA
  const std::vector<TensorList> lists = lists_of(tensors);
  std::vector<int64_t> begins = {0};  // of the sums of each list
  for (const TensorList& list : lists) {
    begins.push_back(begins.back() + Chunks<>::of(list.sizes, list.count).blocks(list.count));
  }
  const int64_t count = begins.back();
  const at::Tensor sums = at::empty({count}, norm.options());
  auto* const values = sums.mutable_data_ptr<float>();
  for (size_t i = 0; i < lists.size(); ++i) {
    launch_on(norm.device(), [&](void* stream) { return launch_squares(lists[i], values + begins[i], stream); });
  }
  launch_on(norm.device(), [&](void* stream) {
    return launch_norm(sums.const_data_ptr<float>(), count, norm.mutable_data_ptr<float>(), stream);
  });
#endif
  return norm;
}

std::vector<at::Tensor> norms_of(const std::vector<at::Tensor>& tensors, int64_t large) {
  const int64_t piece = std::max<int64_t>(large / 16, 1);
  const auto is_large = [&](const at::Tensor& tensor) { return tensor.is_cpu() && tensor.numel() > large; };
  if (std::none_of(tensors.begin(), tensors.end(), is_large)) return at::_foreach_norm(tensors, 2);
  std::vector<at::Tensor> norms;
  for (const at::Tensor& tensor : tensors) {
    if (!is_large(tensor)) {
      norms.push_back(at::linalg_vector_norm(tensor, 2));
      continue;
    }
    const bool is_dense = tensor.is_non_overlapping_and_dense();
    const at::Tensor flat = is_dense ? tensor.as_strided({tensor.numel()}, {1}) : tensor.reshape({-1});
    const std::vector<at::Tensor> parts = at::_foreach_norm(flat.split(piece), 2);
    norms.push_back(at::linalg_vector_norm(at::stack(parts).to(at::kDouble), 2).to(tensor.scalar_type()));
  }
  return norms;
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
         from[end].scalar_type() == to[end].scalar_type() && from[end].sizes() == to[end].sizes() &&
         from[end].strides() == to[end].strides()) {
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
    CopyList list;
    for (; begin < end; ++begin, ++list.count) {
      list.from[list.count] = from[begin].const_data_ptr();
      list.to[list.count] = to[begin].mutable_data_ptr();
      list.sizes[list.count] = static_cast<int64_t>(to[begin].nbytes());
      note_change(to[begin]);
    }
    launch_on(device, [&](void* stream) {
      return launch_copy(list, decides.defined() ? decides.const_data_ptr<float>() : nullptr, stream);
    });
#endif
  }
}

std::vector<at::Tensor> cast_together(const std::vector<at::Tensor>& tensors, at::ScalarType type) {
  constexpr int64_t kAligned = 64;
  const auto room = [](const at::Tensor& tensor) { return round_up(tensor.numel(), kAligned); };
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
    auto part = parts.begin();
    for (const TensorList& some : lists_of(tensors)) {
      CastList list;
      for (; list.count < some.count; ++list.count, ++part) {
        list.from[list.count] = some.data[list.count];
        list.to[list.count] = part->mutable_data_ptr();
        list.sizes[list.count] = some.sizes[list.count];
      }
      launch_on(all.device(), [&](void* stream) { return launch_cast(list, type == at::kBFloat16, stream); });
    }
    return parts;
  }
#endif
  for (size_t i = 0; i < tensors.size(); ++i) parts[i].copy_(tensors[i]);
  return parts;
}

}  // namespace trainkit::detail
