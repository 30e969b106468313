#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/bmm_cpu_dispatch.h>
#include <ATen/ops/conv1d.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/conv3d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mm_cpu_dispatch.h>
#include <c10/core/GradMode.h>
#include <torch/library.h>

#include <cstdlib>
#include <optional>
#include <random>
#include <string_view>
#include <utility>

#include "core/libtorch/undeclared.h"
#include "trainkit/nn/functional.h"

namespace trainkit {
namespace {

constexpr int64_t kLeastProducts = int64_t{1} << 20;  // below this, oneDNN's overhead exceeds its gain

bool is_float_matrix(const at::Tensor& x) {
  return x.dim() == 2 && x.scalar_type() == at::kFloat && x.layout() == at::kStrided && x.device().is_cpu();
}

bool supports(const at::Tensor& a, const at::Tensor& b) {
  return is_float_matrix(a) && is_float_matrix(b) && a.size(1) == b.size(0) &&
         a.size(0) * a.size(1) * b.size(1) >= kLeastProducts && at::globalContext().userEnabledMkldnn();
}

at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  at::Tensor out = at::empty({a.size(0), b.size(1)}, a.options());
  at::native::mkldnn_matmul(a, b, out, /*beta=*/0, /*alpha=*/1);
  return out;
}

/// Returns whether oneDNN can write a b to `out`: rows without gaps, in memory of its own.
bool supports_out(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  return supports(a, b) && is_float_matrix(out) && out.is_contiguous() && out.size(0) == a.size(0) &&
         out.size(1) == b.size(1) && !out.is_alias_of(a) && !out.is_alias_of(b);
}

at::Tensor mm(const at::Tensor& a, const at::Tensor& b) { return supports(a, b) ? product(a, b) : at::cpu::mm(a, b); }

at::Tensor& mm_out(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  if (!supports_out(out, a, b)) return at::cpu::mm_out(out, a, b);
  at::native::mkldnn_matmul(a, b, out, /*beta=*/0, /*alpha=*/1);
  return out;
}

/// mkldnn_matmul ignores beta if alpha is 0, and LibTorch does not read `self` if beta is 0.
bool is_zero(const at::Scalar& factor) { return factor.toDouble() == 0; }

at::Tensor& addmm_out(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta,
                      const at::Scalar& alpha, at::Tensor& out) {
  if (!self.is_same(out) || !supports_out(out, a, b) || is_zero(beta) || is_zero(alpha)) {
    return at::cpu::addmm_out(out, self, a, b, beta, alpha);
  }
  at::native::mkldnn_matmul(a, b, out, beta.to<float>(), alpha.to<float>());
  return out;
}

at::Tensor addmm(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta,
                 const at::Scalar& alpha) {
  if (!supports(a, b) || self.scalar_type() != at::kFloat || is_zero(beta) || is_zero(alpha)) {
    return at::cpu::addmm(self, a, b, beta, alpha);
  }
  at::Tensor out = at::empty({a.size(0), b.size(1)}, a.options());
  out.copy_(self.expand(out.sizes()));
  at::native::mkldnn_matmul(a, b, out, beta.to<float>(), alpha.to<float>());
  return out;
}

// Note [bfloat16 without AVX-512]
// On x86 processors without AVX-512, LibTorch multiplies bfloat16 matrices with scalar loops: 7 to 80 times slower than
// the same product in float32; convolutions are 13 times slower. The functions below widen the operands and multiply in
// float32. Products are rounded once, as by processors with bfloat16 instructions; convolutions under autocast are not.

bool is_bfloat16(const at::Tensor& x) {
  return x.scalar_type() == at::kBFloat16 && x.layout() == at::kStrided && x.device().is_cpu();
}

bool are_bfloat16(const at::Tensor& a, const at::Tensor& b) { return is_bfloat16(a) && is_bfloat16(b); }

at::Tensor widen(const at::Tensor& x) { return x.to(at::kFloat); }

at::Tensor bfloat16_mm(const at::Tensor& a, const at::Tensor& b) {
  return are_bfloat16(a, b) ? at::cpu::mm(widen(a), widen(b)).to(at::kBFloat16) : at::cpu::mm(a, b);
}

at::Tensor& write(const at::Tensor& result, at::Tensor& out) {
  at::native::resize_output(out, result.sizes());
  return out.copy_(result);
}

at::Tensor& bfloat16_mm_out(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  if (!are_bfloat16(a, b) || !is_bfloat16(out)) return at::cpu::mm_out(out, a, b);
  return write(at::cpu::mm(widen(a), widen(b)), out);
}

at::Tensor bfloat16_bmm(const at::Tensor& a, const at::Tensor& b) {
  return are_bfloat16(a, b) ? at::cpu::bmm(widen(a), widen(b)).to(at::kBFloat16) : at::cpu::bmm(a, b);
}

at::Tensor bfloat16_addmm(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta,
                          const at::Scalar& alpha) {
  if (!are_bfloat16(a, b) || !is_bfloat16(self)) return at::cpu::addmm(self, a, b, beta, alpha);
  return at::cpu::addmm(widen(self), widen(a), widen(b), beta, alpha).to(at::kBFloat16);
}

at::Tensor& bfloat16_addmm_out(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta,
                               const at::Scalar& alpha, at::Tensor& out) {
  if (!are_bfloat16(a, b) || !is_bfloat16(self) || !is_bfloat16(out)) {
    return at::cpu::addmm_out(out, self, a, b, beta, alpha);
  }
  return write(at::cpu::addmm(widen(self), widen(a), widen(b), beta, alpha), out);
}

/// Computes a convolution under autocast in float32, as autocast computes a loss. It returns float32.
template <at::Tensor (*Convolve)(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                                 c10::SymIntArrayRef, c10::SymIntArrayRef, c10::SymIntArrayRef, c10::SymInt)>
at::Tensor float_convolution(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                             c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                             c10::SymInt groups) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCPU);
  const auto cast = [](const at::Tensor& x) { return at::autocast::cached_cast(at::kFloat, x, c10::DeviceType::CPU); };
  return Convolve(cast(input), cast(weight), bias ? std::optional(cast(*bias)) : bias, stride, padding, dilation,
                  std::move(groups));
}

/// Returns the largest error of the product, relative to its largest value.
double error_of(const at::Tensor& result, const at::Tensor& exact) {
  return ((result.to(at::kDouble) - exact).abs().max() / exact.abs().max()).item<double>();
}

/// Compares oneDNN with MKL on one product. On some processors oneDNN computes float32 products in bfloat16.
bool is_accurate() {
  const c10::AutoGradMode no_grad(false);
  std::mt19937 random(1);
  const auto matrix = [&](int64_t rows, int64_t columns) {
    at::Tensor values = at::empty({rows, columns}, at::kFloat);
    std::normal_distribution<float> normal;
    auto* data = values.mutable_data_ptr<float>();
    for (int64_t k = 0; k < values.numel(); ++k) data[k] = normal(random);
    return values;
  };
  const at::Tensor a = matrix(160, 320), b = matrix(320, 96);
  const at::Tensor exact = at::mm(a.to(at::kDouble), b.to(at::kDouble));
  return error_of(product(a, b), exact) <= 2 * error_of(at::cpu::mm(a, b), exact);
}

bool fast_products_wanted() {
  if (const char* set = std::getenv("TRAINKIT_ONEDNN_MATMUL")) return std::string_view(set) != "0";
#if defined(__x86_64__)
  return !__builtin_cpu_is("intel");
#else
  return false;  // not measured
#endif
}

/// Suppresses LibTorch's warning about a kernel that replaces its own.
struct Silence : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

/// As is_accurate(); false on a processor on which LibTorch's function refuses: x86 without AVX-512.
bool is_usable() try { return is_accurate(); } catch (const c10::Error&) {
  return false;
}

bool is_bfloat16_slow() {
#if defined(__x86_64__)
  return !__builtin_cpu_supports("avx512bw");
#else
  return false;  // not measured
#endif
}

/// Returns whether float32 products use oneDNN.
bool replace_kernels() {
  const bool uses_onednn = fast_products_wanted() && at::globalContext().userEnabledMkldnn() && is_usable();
  if (!uses_onednn && !is_bfloat16_slow()) return false;
  Silence silence;
  const c10::WarningUtils::WarningHandlerGuard guard(&silence);
  static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  if (uses_onednn) {
    library.impl("mm", mm);
    library.impl("mm.out", mm_out);
    library.impl("addmm", addmm);
    library.impl("addmm.out", addmm_out);
  } else {  // oneDNN's products need AVX-512, these are for processors without
    library.impl("mm", bfloat16_mm);
    library.impl("mm.out", bfloat16_mm_out);
    library.impl("bmm", bfloat16_bmm);
    library.impl("addmm", bfloat16_addmm);
    library.impl("addmm.out", bfloat16_addmm_out);
    static torch::Library autocast(torch::Library::IMPL, "aten", c10::DispatchKey::AutocastCPU, __FILE__, __LINE__);
    autocast.impl("conv1d", float_convolution<at::conv1d_symint>);
    autocast.impl("conv2d", float_convolution<at::conv2d_symint>);
    autocast.impl("conv3d", float_convolution<at::conv3d_symint>);
  }
  return uses_onednn;
}

}  // namespace

bool use_fast_kernels() {
  static const bool uses_onednn = replace_kernels();
  return uses_onednn;
}

}  // namespace trainkit
