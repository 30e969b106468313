#pragma once
/// Calls the kernels of gpu_kernels.h for tensors: on the current stream of a CUDA device, or on the CPU.

#include <ATen/core/Tensor.h>

#include <optional>

#include "core/device/gpu_launch.h"
#include "core/machine/shapes_only.h"
#include "nn/gpu/gpu_kernels.h"

namespace trainkit::detail {

inline std::optional<Number> number_of(at::ScalarType type) {
  if (type == at::kFloat) return Number::kFloat;
  if (type == at::kBFloat16) return Number::kBFloat16;
  if (type == at::kHalf) return Number::kHalf;
  return std::nullopt;
}

/// Returns nullopt if no kernel supports these dtypes.
inline std::optional<Numbers> numbers_of(at::ScalarType stream, at::ScalarType product) {
  const auto first = number_of(stream), second = number_of(product);
  if (!first || !second || (first != second && first != Number::kFloat)) return std::nullopt;
  return Numbers{*first, *second};
}

inline Numbers numbers_of(const at::Tensor& stream, const at::Tensor& product) {
  return numbers_of(stream.scalar_type(), product.scalar_type()).value();
}

inline const void* data_of(const at::Tensor& tensor) { return tensor.defined() ? tensor.const_data_ptr() : nullptr; }
inline void* writable(const at::Tensor& tensor) { return tensor.defined() ? tensor.mutable_data_ptr() : nullptr; }
inline float* floats(const at::Tensor& tensor) { return tensor.mutable_data_ptr<float>(); }

template <typename Arguments>
void run_on(at::Device device, const Arguments& arguments, Numbers numbers) {
  if (device.is_cpu()) {
    if (!shapes_only()) on_cpu::run(arguments, numbers);
    return;
  }
#ifdef TRAINKIT_WITH_CUDA
  launch_on(device, [&](void* stream) { return on_gpu::run(arguments, numbers, stream); });
#else
  TORCH_CHECK(false, "trainkit was built without CUDA");
#endif
}

}  // namespace trainkit::detail
