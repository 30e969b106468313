#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mm_cpu_dispatch.h>
#include <c10/core/GradMode.h>
#include <torch/library.h>

#include <cstdlib>
#include <random>
#include <string_view>

#include "trainkit/nn/linear.h"

namespace at::native {
/// Computes result = beta * result + alpha * mat1 mat2. Exported by libtorch_cpu (2.11) but not declared in its
/// headers.
void mkldnn_matmul(const Tensor& mat1, const Tensor& mat2, const Tensor& result, float beta, float alpha);
}  // namespace at::native

namespace trainkit {
namespace {

constexpr int64_t kLeastMultiplications = int64_t{1} << 20;  // below this, oneDNN's overhead exceeds its gain

bool is_float_matrix(const at::Tensor& x) {
  return x.dim() == 2 && x.scalar_type() == at::kFloat && x.layout() == at::kStrided && x.device().is_cpu();
}

bool supports(const at::Tensor& a, const at::Tensor& b) {
  return is_float_matrix(a) && is_float_matrix(b) && a.size(1) == b.size(0) &&
         a.size(0) * a.size(1) * b.size(1) >= kLeastMultiplications && at::globalContext().userEnabledMkldnn();
}

at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  at::Tensor out = at::empty({a.size(0), b.size(1)}, a.options());
  at::native::mkldnn_matmul(a, b, out, /*beta=*/0, /*alpha=*/1);
  return out;
}

at::Tensor mm(const at::Tensor& a, const at::Tensor& b) { return supports(a, b) ? product(a, b) : at::cpu::mm(a, b); }

at::Tensor addmm(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta,
                 const at::Scalar& alpha) {
  if (!supports(a, b) || self.scalar_type() != at::kFloat || beta.toDouble() == 0) {
    return at::cpu::addmm(self, a, b, beta, alpha);
  }
  at::Tensor out = at::empty({a.size(0), b.size(1)}, a.options());
  out.copy_(self.expand(out.sizes()));
  at::native::mkldnn_matmul(a, b, out, beta.to<float>(), alpha.to<float>());
  return out;
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

bool is_wanted() {
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

bool replace_kernels() {
  if (!is_wanted() || !at::globalContext().userEnabledMkldnn() || !is_usable()) return false;
  Silence silence;
  const c10::WarningUtils::WarningHandlerGuard guard(&silence);
  static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  library.impl("mm", mm);
  library.impl("addmm", addmm);
  return true;
}

}  // namespace

bool use_onednn_matmul() {
  static const bool used = replace_kernels();
  return used;
}

}  // namespace trainkit
