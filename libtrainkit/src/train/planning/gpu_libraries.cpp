#include "train/planning/gpu_libraries.h"

#include <ATen/Context.h>

#ifdef TRAINKIT_WITH_CUDA
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDAGuard.h>
#endif

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "core/libtorch/blas_workspaces.h"

namespace trainkit::detail {
namespace {

thread_local LibraryWatch* current_watch = nullptr;

constexpr std::array<std::string_view, 9> kProducts = {"aten::mm",      "aten::addmm",  "aten::bmm",
                                                       "aten::baddbmm", "aten::addbmm", "aten::mv",
                                                       "aten::addmv",   "aten::dot",    "aten::vdot"};
constexpr std::array<std::string_view, 2> kConvolutions = {"aten::convolution", "aten::convolution_backward"};

template <size_t n>
bool is_one_of(std::string_view name, const std::array<std::string_view, n>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Returns whether LibTorch lets cuBLASLt add the bias: a vector, added to a product of matrices that are not vectors
/// (aten/src/ATen/native/cuda/Blas.cpp).
bool adds_bias(std::string_view name, c10::ArrayRef<const c10::IValue> inputs) {
  if (name != "aten::addmm") return false;
  const at::Tensor &bias = inputs[0].toTensor(), &a = inputs[1].toTensor(), &b = inputs[2].toTensor();
  return bias.dim() == 1 && a.dim() == 2 && b.dim() == 2 && a.size(0) > 1 && a.size(1) > 1 && b.size(1) > 1;
}

/// A running convolution or its backward.
struct Convolution {
  Convolution(int64_t allocations, const at::RecordFunction& function) : first_allocation(allocations) {
    const auto inputs = function.inputs();
    const size_t first = function.name() == kConvolutions[1] ? 1 : 0;  // backward: argument 0 is the output's gradient
    if (first == 1) output = inputs[0].toTensor();
    input = inputs[first].toTensor();
    weight = inputs[first + 1].toTensor();
    const auto all_are = [](const c10::IValue& list, int64_t value) {
      const auto numbers = list.toDimVector();
      return std::all_of(numbers.begin(), numbers.end(), [=](int64_t number) { return number == value; });
    };
    const size_t stride = 3 + first;
    const bool is_product = weight.dim() < 5 && weight[0][0].numel() == 1 && all_are(inputs[stride], 1) &&
                            all_are(inputs[stride + 1], 0) && all_are(inputs[stride + 2], 1);
    const bool is_depthwise = inputs[stride + 5].toInt() > 1 && weight.size(1) == 1;
    has_columns = !is_product && !is_depthwise;
  }

  /// Temporary memory of LibTorch's CUDA convolution: a copy of a non-contiguous input, and the columns of one row
  /// (im2col), which a matrix product reads.
  std::array<int64_t, 2> temporary_bytes(c10::ArrayRef<c10::IValue> outputs) const {
    const at::Tensor& out = output.defined() ? output : outputs[0].toTensor();
    const int64_t places = out[0][0].numel(), values = weight[0].numel();
    const int64_t copy = input.is_contiguous() ? 0 : static_cast<int64_t>(input.nbytes());
    return {copy, has_columns ? places * values * static_cast<int64_t>(out.element_size()) : 0};
  }

  const int64_t first_allocation;
  at::Tensor input, weight, output;
  bool has_columns = true;
};

/// What a running operation needs besides its tensors.
struct Operation final : at::ObserverContext {
  std::optional<Convolution> convolution;
  int64_t workspace_bytes = 0;
};

}  // namespace

bool keeps_library_workspaces() { return keeps_blas_workspaces(); }

GpuLibraries gpu_libraries([[maybe_unused]] c10::Device device) {
  GpuLibraries libraries;
#ifdef TRAINKIT_WITH_CUDA
  if (device.is_cuda()) {
    const c10::cuda::OptionalCUDAGuard guard(device.has_index() ? std::optional(device) : std::nullopt);
    libraries.cublas_bytes = static_cast<int64_t>(at::cuda::getChosenWorkspaceSize());
    libraries.cublaslt_bytes = static_cast<int64_t>(at::cuda::getCUDABlasLtWorkspaceSize());
    libraries.has_cudnn = at::globalContext().userEnabledCuDNN();
  }
#endif
  return libraries;
}

void free_library_workspaces() {
#ifdef TRAINKIT_WITH_CUDA
  at::cuda::clearCublasWorkspaces();
#endif
}

LibraryWatch::LibraryWatch(MemoryRecorder& recorder, const GpuLibraries& libraries, bool on)
    : recorder_(recorder), libraries_(libraries) {
  if (!on) return;
  current_watch = this;
  handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(begin, end)
                                           .needsInputs(true)
                                           .needsOutputs(true)
                                           .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
}

LibraryWatch::~LibraryWatch() {
  if (handle_ == at::INVALID_CALLBACK_HANDLE) return;
  at::removeCallback(handle_);
  current_watch = nullptr;
}

std::unique_ptr<at::ObserverContext> LibraryWatch::begin(const at::RecordFunction& function) {
  if (!current_watch) return nullptr;
  LibraryWatch& watch = *current_watch;
  const GpuLibraries& libraries = watch.libraries_;
  const std::string_view name = function.name();
  const bool convolves = is_one_of(name, kConvolutions), with_bias = adds_bias(name, function.inputs());
  const bool multiplies = is_one_of(name, kProducts) || (convolves && !libraries.has_cudnn);
  if (libraries.keeps_workspaces) {
    if (multiplies) watch.take(watch.has_cublas_[watch.thread_], libraries.cublas_bytes);
    if (with_bias) watch.take(watch.has_cublaslt_[watch.thread_], libraries.cublaslt_bytes);
  }
  if (!convolves && (libraries.keeps_workspaces || !multiplies)) return nullptr;
  auto operation = std::make_unique<Operation>();
  if (convolves) operation->convolution.emplace(watch.recorder_.allocations(), function);
  if (multiplies && !libraries.keeps_workspaces) {
    operation->workspace_bytes = with_bias ? libraries.cublaslt_bytes : libraries.cublas_bytes;
  }
  return operation;
}

void LibraryWatch::end(const at::RecordFunction& function, at::ObserverContext* context) {
  if (!current_watch || !context) return;
  MemoryRecorder& recorder = current_watch->recorder_;
  const auto& operation = static_cast<const Operation&>(*context);
  if (!operation.convolution) {
    const std::array<int64_t, 1> workspace = {operation.workspace_bytes};
    return recorder.pass(workspace, MemoryClass::kLibraries);
  }
  const Convolution& convolution = *operation.convolution;
  recorder.assign_freed_since(convolution.first_allocation, MemoryClass::kWorkspace);
  if (current_watch->libraries_.has_cudnn) return;
  const auto [copy, columns] = convolution.temporary_bytes(function.outputs());
  const std::array<int64_t, 3> temporary = {copy, columns, operation.workspace_bytes};
  recorder.pass(temporary, MemoryClass::kActivations);
}

void LibraryWatch::take(bool& has, int64_t bytes) {
  if (!has) recorder_.add(bytes, MemoryClass::kLibraries);
  has = true;
}

}  // namespace trainkit::detail
