#include "train/planning/step_flops.h"

#include <memory>
#include <mutex>
#include <string_view>

#include "train/graph/operation_watch.h"

namespace trainkit {
namespace {

const at::Tensor& tensor_at(c10::ArrayRef<const c10::IValue> values, size_t index) { return values[index].toTensor(); }

/// Returns the operations of applying all kernels of `weight` (out, in, ...) at `places` positions: of all images,
/// without the channels.
double kernels(const at::Tensor& weight, int64_t places) {
  return 2.0 * static_cast<double>(weight.numel()) * static_cast<double>(places);
}

int64_t places_of(const at::Tensor& images) { return images.numel() / images.size(1); }

/// Returns the number of output positions of a convolution. Arguments of aten::convolution: input, weight, bias,
/// stride, padding, dilation, transposed, ...
int64_t places_out(c10::ArrayRef<const c10::IValue> arguments) {
  const at::Tensor& images = arguments[0].toTensor();
  if (arguments[6].toBool()) return places_of(images);  // transposed: the kernel is applied at each input position
  const auto stride = arguments[3].toDimVector(), padding = arguments[4].toDimVector(),
             dilation = arguments[5].toDimVector();
  // A list with one number applies to all dimensions.
  const auto at = [](const at::DimVector& list, size_t i) { return list[list.size() == 1 ? 0 : i]; };
  int64_t places = images.size(0);
  for (int64_t d = 2; d < images.dim(); ++d) {
    const auto i = static_cast<size_t>(d - 2);
    const int64_t reach = at(dilation, i) * (arguments[1].toTensor().size(d) - 1) + 1;
    places *= (images.size(d) + 2 * at(padding, i) - reach) / at(stride, i) + 1;
  }
  return places;
}

/// Returns the operations of the product (..., m, k) by (..., k, n).
double product(const at::Tensor& a, const at::Tensor& b) {
  return 2.0 * static_cast<double>(a.numel()) * static_cast<double>(b.size(-1));
}

/// Returns the operations of a call, 0 for calls that are not counted.
double flops_of(const at::RecordFunction& function) {
  const std::string_view name = function.name();
  const auto inputs = function.inputs();
  if (name == "aten::mm" || name == "aten::bmm") return product(tensor_at(inputs, 0), tensor_at(inputs, 1));
  if (name == "aten::addmm" || name == "aten::baddbmm") return product(tensor_at(inputs, 1), tensor_at(inputs, 2));
  if (name == "aten::convolution") return kernels(tensor_at(inputs, 1), places_out(inputs));
  if (name.starts_with("trainkit::convolution")) {  // or one of its gradients: weight, output (..., kernels), ...
    const at::Tensor& output = tensor_at(inputs, 1);
    return kernels(tensor_at(inputs, 0), output.numel() / output.size(-1));
  }
  if (name != "aten::convolution_backward") return 0;
  // Each requested gradient, of the input and of the weights, costs as many operations as forward.
  const auto wanted = inputs.back().toBoolList();
  const bool transposed = inputs[7].toBool();
  const double each = kernels(tensor_at(inputs, 2), places_of(tensor_at(inputs, transposed ? 1 : 0)));
  return each * (static_cast<double>(wanted.get(0)) + static_cast<double>(wanted.get(1)));
}

/// Sums up over threads: backward may run in autograd's.
class Counter final : public detail::OperationObserver {
 public:
  void begin(const at::RecordFunction& operation) override {
    const bool starts = std::string_view(operation.name()) == detail::kRecording;  // again, if values were read
    const double more = starts ? 0 : flops_of(operation);
    const std::lock_guard lock(mutex_);
    sum_ = starts ? 0 : sum_ + more;
  }
  double sum() {
    const std::lock_guard lock(mutex_);
    return sum_;
  }

 private:
  std::mutex mutex_;
  double sum_ = 0;
};

}  // namespace

absl::StatusOr<double> count_step_flops(const StepRecipe& recipe, int64_t batch_size) {
  StepRecipe plain = recipe;
  plain.step.precision = Precision::kFp32;
  const auto counter = std::make_shared<Counter>();
  const detail::OperationWatch watch(detail::WatchPurpose::kCount, counter);
  const auto trace = record_step_memory(plain, batch_size, 1);
  if (!trace.ok()) return trace.status();
  return counter->sum() / 2;  // two steps were recorded
}

}  // namespace trainkit
