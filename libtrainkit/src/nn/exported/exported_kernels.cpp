#include "nn/exported/exported_kernels.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/gelu_backward.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "core/device/gpu_operations.h"
#include "core/machine/shapes_only.h"
#include "distributed/batch_norm/batch_norm_kernel.h"
#include "nn/cpu/attention_kernel.h"
#include "nn/cpu/block_kernels.h"
#include "trainkit/nn/functional.h"

namespace trainkit::detail {
namespace {

using Arguments = c10::ArrayRef<c10::IValue>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor tensor_or_none(const c10::IValue& value) { return value.isNone() ? at::Tensor() : value.toTensor(); }

// ---- aten::scaled_dot_product_attention: causal, of queries, keys and values that are parts of one tensor

/// (B, heads, T, D) three times, parts of one tensor (B, T, 3 heads D), which this returns; else undefined.
at::Tensor packed(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  if (q.dim() != 4 || q.sizes() != k.sizes() || q.sizes() != v.sizes()) return {};
  const int64_t heads = q.size(1), time = q.size(2), width = heads * q.size(3);
  const std::array<int64_t, 4> strides = {time * 3 * width, q.size(3), 3 * width, 1};
  for (const at::Tensor* part : {&q, &k, &v}) {
    if (part->strides() != at::IntArrayRef(strides) || !part->is_alias_of(q)) return {};
  }
  const int64_t first = q.storage_offset();
  if (k.storage_offset() != first + width || v.storage_offset() != first + 2 * width) return {};
  return q.as_strided({q.size(0), time, 3 * width}, {time * 3 * width, 3 * width, 1}, first);
}

struct PackedAttention : torch::autograd::Function<PackedAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            double scale) {
    const at::Tensor qkv = packed(q, k, v);
    const Attended attended = causal_attention(qkv, {}, {q.size(1), scale});
    context->saved_data["scale"] = scale;
    context->save_for_backward({q, k, v, attended.mixed, attended.logsumexp});
    return attended.mixed.view({q.size(0), q.size(2), q.size(1), q.size(3)}).transpose(1, 2);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2];
    const double scale = context->saved_data["scale"].toDouble();
    if (c10::GradMode::is_enabled()) {  // LibTorch's composition of operators has a second derivative
      const auto [out, weights] = at::_scaled_dot_product_attention_math(q, k, v, {}, 0, /*is_causal=*/true, {}, scale);
      auto inputs = torch::autograd::grad({out}, {q, k, v}, {gradients[0]}, true, /*create_graph=*/true);
      inputs.emplace_back();
      return inputs;
    }
    const int64_t batch = q.size(0), heads = q.size(1), time = q.size(2), width = q.size(3);
    const at::Tensor d_mixed = gradients[0].transpose(1, 2).reshape({batch, time, heads * width});
    const at::Tensor d_qkv =
        causal_attention_backward(d_mixed.contiguous(), packed(q, k, v), {}, {saved[3], saved[4]}, {heads, scale});
    const at::Tensor parts = d_qkv.view({batch, time, 3, heads, width}).permute({2, 0, 3, 1, 4});
    return {parts[0], parts[1], parts[2], at::Tensor()};
  }
};

/// The dtype in which LibTorch computes attention on the CPU: float32 or that of autocast.
at::ScalarType attention_dtype() {
  return at::autocast::is_autocast_enabled(at::kCPU) ? at::autocast::get_autocast_dtype(at::kCPU) : at::kFloat;
}

/// Whether a mask lets each position see itself and earlier ones. Reads its values: one row of it takes nanoseconds.
bool is_causal(const at::Tensor& mask, const at::Tensor& q) {
  const int64_t time = q.size(2);
  if (mask.scalar_type() != at::kBool || !mask.is_cpu() || mask.dim() != 4 || shapes_only()) return false;
  if (mask.size(1) != 1 || mask.size(2) != time || mask.size(3) != time || mask.stride(3) != 1) return false;
  if (mask.size(0) != 1 && mask.size(0) != q.size(0)) return false;
  std::vector<char> pattern(static_cast<size_t>(2 * time), 0);
  std::fill_n(pattern.begin(), time, 1);
  const auto* first = reinterpret_cast<const char*>(mask.const_data_ptr<bool>());
  for (int64_t image = 0; image < (mask.stride(0) == 0 ? 1 : mask.size(0)); ++image) {
    for (int64_t row = 0; row < time; ++row) {
      const char* values = first + image * mask.stride(0) + row * mask.stride(2);
      if (std::memcmp(values, pattern.data() + time - 1 - row, static_cast<size_t>(time)) != 0) return false;
    }
  }
  return true;
}

at::Tensor attention(Arguments a) {
  const at::Tensor &q = a[0].toTensor(), &k = a[1].toTensor(), &v = a[2].toTensor();
  const bool fits = q.scalar_type() == attention_dtype() && q.scalar_type() != at::kHalf;
  if (!q.is_cpu() || !fits || q.numel() == 0 || GpuOperations::wanted() || !packed(q, k, v).defined()) return {};
  if (!has_causal_attention(q.size(2), q.size(1) * q.size(3), q.size(1))) return {};
  if (!a[5].toBool() && !is_causal(a[3].toTensor(), q)) return {};
  const double scale = a[6].isNone() ? 1 / std::sqrt(static_cast<double>(q.size(3))) : a[6].toScalar().toDouble();
  return PackedAttention::apply(q, k, v, scale);
}

// ---- aten::gelu by tanh

struct TanhGelu : torch::autograd::Function<TanhGelu> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    return bias_activation(x.view({-1, x.size(-1)}), {}, Activation::kGeluTanh).view(x.sizes());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor x = context->get_saved_variables()[0];
    if (c10::GradMode::is_enabled()) return {at::gelu_backward(gradients[0], x, "tanh")};
    const at::Tensor gradient = gradients[0].contiguous();
    return {
        bias_activation_backward(gradient.view({-1, x.size(-1)}), x.view({-1, x.size(-1)}), {}, Activation::kGeluTanh)
            .x.view(x.sizes())};
  }
};

at::Tensor tanh_gelu(Arguments a) {
  const at::Tensor& x = a[0].toTensor();
  const bool fits = x.is_cpu() && x.scalar_type() == at::kFloat && x.dim() > 0 && x.is_contiguous() && x.numel() > 0;
  return fits && x.size(-1) % 16 == 0 && !GpuOperations::wanted() ? TanhGelu::apply(x) : at::Tensor();
}

// ---- The others

/// Winograd's algorithm is faster than oneDNN where an image has as many positions as channels: 1.1 to 1.7 times with
/// its conversions of layouts; with fewer positions it is up to twice as slow. The rule does not depend on the number
/// of images, so that parts of a batch have the bits of the whole.
at::Tensor convolve(Arguments a) {
  const at::Tensor &x = a[0].toTensor(), &weight = a[1].toTensor();
  if (!x.is_cpu() || x.scalar_type() != at::kFloat || x.dim() != 4 || weight.dim() != 4) return {};
  if (weight.size(2) != 3 || weight.size(3) != 3 || x.size(2) * x.size(3) < x.size(1)) return {};
  return convolution(x, weight, tensor_or_none(a[2]), {1, 1}, a[4].toIntVector()).contiguous(x.suggest_memory_format());
}

at::Tensor normalise(Arguments a) {
  const at::Tensor &x = a[0].toTensor(), &weight = a[1].toTensor(), &bias = a[2].toTensor();
  if (x.dim() < 2 || x.numel() == x.size(1) || !has_fused_batch_norm(x, {}, weight, bias)) return {};
  return fused_batch_norm(x, {}, weight, bias, {a[3].toTensor(), a[4].toTensor(), a[6].toDouble(), a[7].toDouble()},
                          false);
}

at::Tensor loss(Arguments a) { return cross_entropy(a[0].toTensor(), a[1].toTensor(), a[4].toInt()); }

at::Tensor lookup(Arguments a) {
  const at::Tensor& weight = a[0].toTensor();
  return weight.is_cuda() ? embedding_lookup(a[1].toTensor(), weight) : at::Tensor();
}

using Constants = c10::ArrayRef<const c10::IValue*>;  // nullptr: computed by another call

bool is_none(const c10::IValue* value) { return value && value->isNone(); }
bool is_int(const c10::IValue* value, int64_t number) { return value && value->isInt() && value->toInt() == number; }
bool is_flag(const c10::IValue* value, bool flag) { return value && value->isBool() && value->toBool() == flag; }
bool is_zero(const c10::IValue* value) { return value && value->isDouble() && value->toDouble() == 0; }
bool are_ones(const c10::IValue* value) {
  if (!value || !value->isIntList()) return false;
  const auto numbers = value->toIntVector();
  return std::all_of(numbers.begin(), numbers.end(), [](int64_t number) { return number == 1; });
}

struct Entry {
  const char* schema;  // in this LibTorch; a changed operator has no kernel
  bool (*accepts)(Constants);
  ExportedKernel kernel;
};

const Entry kEntries[] = {
    {"aten::gelu(Tensor self, *, str approximate='none') -> Tensor",
     [](Constants c) { return c[1] && c[1]->isString() && c[1]->toStringRef() == "tanh"; }, tanh_gelu},
    {"aten::conv2d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=[1, 1], SymInt[2] padding=[0, 0], "
     "SymInt[2] dilation=[1, 1], SymInt groups=1) -> Tensor",
     [](Constants c) { return are_ones(c[3]) && c[4] && are_ones(c[5]) && is_int(c[6], 1); }, convolve},
    {"aten::batch_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, bool "
     "training, float momentum, float eps, bool cudnn_enabled) -> Tensor",
     [](Constants c) { return !c[1] && !c[2] && !c[3] && !c[4] && is_flag(c[5], true); }, normalise},
    {"aten::cross_entropy_loss(Tensor self, Tensor target, Tensor? weight=None, int reduction=1, SymInt "
     "ignore_index=-100, float label_smoothing=0.) -> Tensor",
     [](Constants c) { return is_none(c[2]) && is_int(c[3], at::Reduction::Mean) && c[4] && is_zero(c[5]); }, loss},
    {"aten::embedding(Tensor weight, Tensor indices, SymInt padding_idx=-1, bool scale_grad_by_freq=False, bool "
     "sparse=False) -> Tensor",
     [](Constants c) { return is_int(c[2], -1) && is_flag(c[3], false) && is_flag(c[4], false); }, lookup},
    {"aten::scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float "
     "dropout_p=0., bool is_causal=False, *, float? scale=None, bool enable_gqa=False) -> Tensor",
     [](Constants c) {
       const bool may_be_causal = is_none(c[3]) ? is_flag(c[5], true) : !c[3] && is_flag(c[5], false);
       return may_be_causal && is_zero(c[4]) && c[6] && is_flag(c[7], false);
     },
     attention},
};

}  // namespace

ExportedKernel find_kernel(const c10::OperatorHandle& op, const std::vector<ExportedValue>& arguments) {
  const std::string start = op.operator_name().name + "(";
  for (const Entry& entry : kEntries) {
    if (!std::string_view(entry.schema).starts_with(start)) continue;
    if (torch::jit::parseSchema(entry.schema) != op.schema()) return nullptr;
    std::vector<const c10::IValue*> constants;
    for (const ExportedValue& argument : arguments) constants.push_back(argument.constant());
    return entry.accepts(constants) ? entry.kernel : nullptr;
  }
  return nullptr;
}

}  // namespace trainkit::detail
