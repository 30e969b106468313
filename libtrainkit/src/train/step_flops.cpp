#include "trainkit/train/step_flops.h"

#include <ATen/record_function.h>

#include <atomic>
#include <string_view>

namespace trainkit {
namespace {

// Backward may run in autograd's threads: one count for all.
std::atomic<double> counted{0};

void add(double flops) {
  double before = counted.load(std::memory_order_relaxed);
  while (!counted.compare_exchange_weak(before, before + flops)) {
  }
}

const at::Tensor& tensor_at(c10::ArrayRef<const c10::IValue> values, size_t index) { return values[index].toTensor(); }

/// Operations of all kernels of `weight` (out, in, ...) at `places`: of all images, channels left out.
double kernels(const at::Tensor& weight, int64_t places) {
  return 2.0 * static_cast<double>(weight.numel()) * static_cast<double>(places);
}

int64_t places_of(const at::Tensor& images) { return images.numel() / images.size(1); }

/// The places that a convolution has values for. Arguments of aten::convolution: input, weight, bias, stride, padding,
/// dilation, transposed, ...
int64_t places_out(c10::ArrayRef<const c10::IValue> arguments) {
  const at::Tensor& images = arguments[0].toTensor();
  if (arguments[6].toBool()) return places_of(images);  // transposed: each kernel stands at each place of the input
  const auto stride = arguments[3].toDimVector(), padding = arguments[4].toDimVector(),
             dilation = arguments[5].toDimVector();
  int64_t places = images.size(0);
  for (int64_t d = 2; d < images.dim(); ++d) {
    const auto i = static_cast<size_t>(d - 2);
    const int64_t reach = dilation[i] * (arguments[1].toTensor().size(d) - 1) + 1;
    places *= (images.size(d) + 2 * padding[i] - reach) / stride[i] + 1;
  }
  return places;
}

/// (..., m, k) by (..., k, n).
double product(const at::Tensor& a, const at::Tensor& b) {
  return 2.0 * static_cast<double>(a.numel()) * static_cast<double>(b.size(-1));
}

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  const std::string_view name = function.name();
  const auto inputs = function.inputs();
  if (name == "aten::mm" || name == "aten::bmm") {
    add(product(tensor_at(inputs, 0), tensor_at(inputs, 1)));
  } else if (name == "aten::addmm" || name == "aten::baddbmm") {
    add(product(tensor_at(inputs, 1), tensor_at(inputs, 2)));
  } else if (name == "aten::convolution") {
    add(kernels(tensor_at(inputs, 1), places_out(inputs)));
  } else if (name == "aten::convolution_backward") {
    // One of as many operations as forward for each gradient that is wanted, of the input and of the weights.
    const auto wanted = inputs.back().toBoolList();
    const bool transposed = inputs[7].toBool();
    const double each = kernels(tensor_at(inputs, 2), places_of(tensor_at(inputs, transposed ? 1 : 0)));
    add(each * (static_cast<double>(wanted.get(0)) + static_cast<double>(wanted.get(1))));
  }
  return nullptr;
}

/// Counts while it lives.
class Counting {
 public:
  Counting()
      : handle_(at::addGlobalCallback(at::RecordFunctionCallback(begin).needsInputs(true).scopes(
            {at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}))) {
    counted = 0;
  }
  ~Counting() { at::removeCallback(handle_); }
  Counting(const Counting&) = delete;
  Counting& operator=(const Counting&) = delete;

 private:
  at::CallbackHandle handle_;
};

}  // namespace

absl::StatusOr<double> count_step_flops(const StepRecipe& recipe, int64_t batch_size) {
  StepRecipe plain = recipe;
  plain.step.precision = Precision::kFp32;
  const Counting counting;
  const auto trace = record_step_memory(plain, batch_size, 1);
  if (!trace.ok()) return trace.status();
  return counted.load() / 2;  // it takes two steps
}

}  // namespace trainkit
