#include "numbers.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/ops/from_blob.h>
#include <ATen/record_function.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <dlfcn.h>
#include <torch/library.h>

#include <cstdlib>
#include <set>

#include "sim.h"

namespace cuda_sim {

bool set_in_operation(bool value);

namespace {

using torch::jit::Stack;

/// Operations that read device memory on the host for a decision: the host waits, as with CUDA, and the CPU's result is
/// copied to the device.
const std::set<std::string>& waiting_operations() {
  static const auto* const names = new std::set<std::string>{"aten::nonzero",
                                                             "aten::nonzero.out",
                                                             "aten::masked_select",
                                                             "aten::masked_select.out",
                                                             "aten::_unique2",
                                                             "aten::unique_dim",
                                                             "aten::unique_consecutive",
                                                             "aten::bincount",
                                                             "aten::unique_dim_consecutive",
                                                             "aten::equal"};
  return *names;
}

/// A copy from or to another device consists of copies within a device and of raw bytes; each of these computes.
bool is_composed(const std::string& name, const Stack& arguments) {
  return name == "aten::copy_" && arguments[0].toTensor().device() != arguments[1].toTensor().device();
}

size_t extent_of(const at::Tensor& t) {
  if (t.numel() == 0) return 0;
  int64_t last = 0;
  for (int64_t d = 0; d < t.dim(); ++d) last += (t.size(d) - 1) * t.stride(d);
  return static_cast<size_t>(last + 1) * t.element_size();
}

/// The device's bytes as a CPU tensor that does not own its storage.
at::Tensor alias_of(const at::Tensor& t) {
  const auto options = t.options().device(at::kCPU).requires_grad(false).pinned_memory(false);
  if (t.numel() == 0) return at::detail::empty_strided_cpu(t.sizes(), t.strides(), t.scalar_type());
  return at::from_blob(backing(t.const_data_ptr()), t.sizes(), t.strides(), options);
}

/// One operation: its inputs and outputs as CPU tensors.
class Operation {
 public:
  explicit Operation(const c10::OperatorHandle& handle) : handle_(handle) {}

  /// An argument for the CPU's operation. CPU tensors are copied, because a kernel gets their values at launch.
  c10::IValue argument(const c10::IValue& value, bool writes) {
    if (value.isTensor()) return value.toTensor().defined() ? c10::IValue(tensor(value.toTensor(), writes)) : value;
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& t : value.toTensorVector()) list.push_back(t.defined() ? tensor(t, writes) : t);
      return list;
    }
    if (value.isList()) {
      const auto from = value.toList();
      c10::impl::GenericList list(from.elementType());
      for (const c10::IValue& item : from) list.push_back(argument(item, writes));
      return list;
    }
    if (value.isDevice() && value.toDevice().is_cuda()) return c10::Device(at::kCPU);
    return value;
  }

  void add_arguments(const c10::FunctionSchema& schema, const Stack& stack) {
    for (size_t i = 0; i < stack.size(); ++i) {
      const c10::AliasInfo* alias = schema.arguments()[i].alias_info();
      const bool writes = alias && alias->isWrite();
      arguments_.push_back(plain(schema.arguments()[i].name(), argument(stack[i], writes)));
      is_written_.push_back(writes);
    }
  }

  void add_results(const c10::FunctionSchema& schema, const Stack& results) {
    for (size_t i = 0; i < results.size(); ++i) {
      const c10::AliasInfo* alias = schema.returns()[i].alias_info();
      const bool is_argument = alias && alias->isWrite();
      results_.push_back(is_argument ? c10::IValue() : argument(results[i], true));
    }
  }

  const std::vector<Access>& accesses() const { return accesses_; }
  int device() const { return device_; }
  void set_random(std::function<RandomPlace()> place) { random_ = std::move(place); }

  /// Computes, in the stream's thread.
  void run() const {
    const at::NoGradGuard no_grad;
    const at::AutoDispatchBelowADInplaceOrView below;
    const std::string name = toString(handle_.operator_name());
    try {
      if (const auto own = counterpart_of(name)) {
        std::vector<at::Tensor> results;
        for (const c10::IValue& result : results_)
          results.push_back(result.isTensor() ? result.toTensor() : at::Tensor());
        own({arguments_, results, random_ ? random_() : RandomPlace{}});
      } else {
        compute();
      }
    } catch (const std::exception& error) {
      const std::string text = error.what();
      finding("numbers", "the CPU's " + name + " failed: " + text.substr(0, text.find('\n')));
    }
  }

 private:
  at::Tensor tensor(const at::Tensor& t, bool writes) {
    if (t.is_cpu()) return t.clone();
    if (t.device().index() != device_ && device_ >= 0 && t.numel() > 0) {
      finding("memory", toString(handle_.operator_name()) + " is given tensors of devices " + std::to_string(device_) +
                            " and " + std::to_string(t.device().index()));
    }
    device_ = t.device().index();
    accesses_.push_back({t.const_data_ptr(), extent_of(t), writes});
    if (t.numel() > 0 && bytes_left(t.const_data_ptr()) < extent_of(t)) {
      finding("memory", toString(handle_.operator_name()) + " is given a tensor beyond its allocation");
    }
    return alias_of(t);
  }

  static bool is_low(const at::Tensor& t) {
    return t.defined() && (t.scalar_type() == at::kHalf || t.scalar_type() == at::kBFloat16);
  }

  /// Arguments that request another dtype than float32: all inputs are converted to float32 before and back after.
  static c10::IValue plain(const std::string& name, const c10::IValue& value) {
    if (name == "half_to_float") return false;     // of softmax and log_softmax
    if (name == "input_dtype" && value.isInt()) {  // of their gradients
      const auto type = static_cast<at::ScalarType>(value.toInt());
      return static_cast<int64_t>(type == at::kHalf || type == at::kBFloat16 ? at::kFloat : type);
    }
    return value;
  }

  /// float32 instead of half and bfloat16: kernels compute in float32, and the CPU lacks many operations on half.
  static c10::IValue raised(const c10::IValue& value) {
    if (value.isTensor()) return is_low(value.toTensor()) ? c10::IValue(value.toTensor().to(at::kFloat)) : value;
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& t : value.toTensorVector()) list.push_back(is_low(t) ? t.to(at::kFloat) : t);
      return list;
    }
    if (value.isList()) {
      const auto from = value.toList();
      c10::impl::GenericList list(from.elementType());
      for (const c10::IValue& item : from) list.push_back(raised(item));
      return list;
    }
    return value;
  }

  /// Copies the result to the device's bytes.
  static void store(const c10::IValue& from, const c10::IValue& to) {
    if (to.isTensor()) {
      if (!to.toTensor().defined() || !from.toTensor().defined()) return;
      const at::Tensor &a = to.toTensor(), &b = from.toTensor();
      if (b.numel() == 0) return;  // a result that one of both omits, such as native_batch_norm's means in evaluation
      if (a.const_data_ptr() != b.const_data_ptr() && a.numel() > 0) a.copy_(b);
    } else if (to.isTensorList()) {
      const auto a = to.toTensorVector(), b = from.toTensorVector();
      for (size_t i = 0; i < a.size(); ++i) store(b[i], a[i]);
    }
  }

  void compute() const {
    Stack stack;
    for (const c10::IValue& argument : arguments_) {
      stack.push_back(argument.isGenerator() || (random_ && argument.isNone() && takes_generator(stack.size()))
                          ? c10::IValue(generator_at(random_()))
                          : raised(argument));
    }
    const Stack given = stack;
    handle_.callBoxed(stack);
    for (size_t i = 0; i < arguments_.size(); ++i) {
      if (is_written_[i]) store(given[i], arguments_[i]);
    }
    for (size_t i = 0; i < results_.size(); ++i) {
      if (!results_[i].isNone()) store(stack[i], results_[i]);
    }
  }

  bool takes_generator(size_t argument) const {
    return handle_.schema().arguments()[argument].type()->str().find("Generator") != std::string::npos;
  }

  c10::OperatorHandle handle_;
  Stack arguments_, results_;
  std::vector<bool> is_written_;
  std::vector<Access> accesses_;
  std::function<RandomPlace()> random_;
  int device_ = -1;
};

/// Returns whether an operation draws random numbers.
bool is_random(const c10::FunctionSchema& schema) {
  static const std::set<std::string> others = {"aten::native_dropout", "aten::_scaled_dot_product_efficient_attention",
                                               "aten::_scaled_dot_product_flash_attention"};
  if (others.count(schema.name())) return true;
  for (const c10::Argument& argument : schema.arguments()) {
    if (argument.type()->str().find("Generator") != std::string::npos) return true;
  }
  return false;
}

/// The generator's position before the operation; in a captured graph, the position at each replay.
std::function<RandomPlace()> random_place(const Stack& arguments, int device) {
  at::Generator generator = at::cuda::detail::getDefaultCUDAGenerator(static_cast<c10::DeviceIndex>(device));
  for (const c10::IValue& argument : arguments) {
    if (argument.isGenerator()) generator = argument.toGenerator();
  }
  auto* const cuda = at::check_generator<at::CUDAGeneratorImpl>(generator);
  const std::lock_guard lock(cuda->mutex_);
  const at::PhiloxCudaState state = cuda->philox_cuda_state(0);
  return [state]() -> RandomPlace {
    if (!state.captured_) return {state.seed_.val, state.offset_.val};
    return {static_cast<uint64_t>(*static_cast<int64_t*>(backing(state.seed_.ptr))),
            static_cast<uint64_t>(*static_cast<int64_t*>(backing(state.offset_.ptr))) + state.offset_intragraph_};
  };
}

/// One thread for the operations of this thread, for reproducible bits and no more threads than CPU cores. MKL has a
/// separate thread count, which at::set_num_threads of any thread changes.
void compute_in_one_thread() {
  thread_local const bool is_set = [] {
    at::get_num_threads();  // sets this thread's count from the program's, once
    if (auto* set = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"))) set(1);
    if (auto* set = reinterpret_cast<int (*)(int)>(dlsym(RTLD_DEFAULT, "MKL_Set_Num_Threads_Local"))) set(1);
    return true;
  }();
  static_cast<void>(is_set);
}

/// The device of the first CUDA tensor in a value; -1 if there is none.
int device_in(const c10::IValue& value) {
  if (value.isTensor()) {
    return value.toTensor().defined() && value.toTensor().is_cuda() ? value.toTensor().device().index() : -1;
  }
  if (value.isDevice() && value.toDevice().is_cuda() && value.toDevice().has_index()) return value.toDevice().index();
  if (!value.isList()) return -1;
  const auto list = value.toList();
  for (const c10::IValue& item : list) {
    if (const int device = device_in(item); device >= 0) return device;
  }
  return -1;
}

/// The device where LibTorch runs an operation: that of its first tensor, not the thread's.
int device_of_operation(const Stack& arguments) {
  for (const c10::IValue& argument : arguments) {
    if (const int device = device_in(argument); device >= 0) return device;
  }
  return current_device();
}

/// Replaces an operation's CUDA kernel in LibTorch's dispatcher.
class Interceptor : public c10::OperatorKernel {
 public:
  Interceptor(const c10::OperatorHandle& handle, c10::SafeKernelFunction original)
      : original_(std::move(original)),
        name_(toString(handle.operator_name())),
        is_random_(is_random(handle.schema())),
        is_waiting_(waiting_operations().count(name_) > 0) {}

  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) {
    const size_t count = handle.schema().arguments().size();
    const Stack arguments(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
    if (is_waiting_) return wait_and_compute(handle, arguments, stack);
    if (is_nested_ || is_composed(name_, arguments)) return original_.callBoxed(handle, keys, stack);
    std::function<RandomPlace()> random;
    const int device = device_of_operation(arguments);
    if (is_random_) random = random_place(arguments, device);
    const uint64_t before = launches_of_this_thread();
    run_original(handle, keys, stack);
    if (launches_of_this_thread() == before) return;  // a view, an allocation, a copy
    const at::DisableRecordFunctionGuard unseen;      // this work is not part of the program
    auto operation = std::make_shared<Operation>(handle);
    operation->add_arguments(handle.schema(), arguments);
    operation->add_results(
        handle.schema(),
        Stack(stack->end() - static_cast<std::ptrdiff_t>(handle.schema().returns().size()), stack->end()));
    operation->set_random(std::move(random));
    const auto accesses = operation->accesses();
    const c10::cuda::CUDAGuard on_its_device(static_cast<c10::DeviceIndex>(device));
    enqueue(c10::cuda::getCurrentCUDAStream().stream(), name_, accesses, [operation] {
      compute_in_one_thread();
      operation->run();
    });
  }

 private:
  void run_original(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) {
    struct Nested {
      Nested() { is_nested_ = true, set_in_operation(true); }
      ~Nested() { is_nested_ = false, set_in_operation(false); }
    } const nested;
    original_.callBoxed(handle, keys, stack);
  }

  void wait_and_compute(const c10::OperatorHandle& handle, const Stack& arguments, Stack* stack) {
    const c10::cuda::CUDAGuard on_its_device(static_cast<c10::DeviceIndex>(device_of_operation(arguments)));
    c10::cuda::getCurrentCUDAStream().synchronize();
    const at::DisableRecordFunctionGuard unseen;
    Stack on_cpu;
    for (const c10::IValue& argument : arguments) {
      on_cpu.push_back(argument.isTensor() && argument.toTensor().is_cuda() ? c10::IValue(alias_of(argument.toTensor()))
                                                                            : argument);
    }
    {
      const at::AutoDispatchBelowADInplaceOrView below;
      handle.callBoxed(on_cpu);
    }
    stack->resize(stack->size() - arguments.size());
    for (const c10::IValue& result : on_cpu) {
      stack->push_back(result.isTensor() ? c10::IValue(result.toTensor().to(at::kCUDA)) : result);
    }
  }

  static thread_local bool is_nested_;
  c10::SafeKernelFunction original_;
  std::string name_;
  bool is_random_, is_waiting_;
};

thread_local bool Interceptor::is_nested_ = false;

/// Registers an Interceptor for every operation of LibTorch that has a CUDA kernel, and for copy_.
void install() {
  struct NoWarning : c10::WarningHandler {
    void process(const c10::Warning&) override {}
  } no_warning;
  const c10::WarningUtils::WarningHandlerGuard silent(&no_warning);
  auto* const library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  auto names = c10::Dispatcher::singleton().getAllOpNamesForDispatchKey(c10::DispatchKey::CUDA);
  names.emplace_back("aten::copy_", "");
  for (const c10::OperatorName& name : names) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const auto handle = c10::Dispatcher::singleton().findSchema(name);
    if (!handle) continue;
    auto interceptor =
        std::make_unique<Interceptor>(*handle, handle->getComputedKernelForDispatchKey(c10::DispatchKey::CUDA));
    const std::string local = name.name.substr(6) + (name.overload_name.empty() ? "" : "." + name.overload_name);
    library->impl(local.c_str(),
                  torch::CppFunction::makeFromBoxedKernel(c10::BoxedKernel::makeFromFunctor(std::move(interceptor))));
  }
}

[[maybe_unused]] const bool is_installed = [] {
  if (device_count() == 0 || !computes()) return true;
  install();
  return true;
}();

}  // namespace

at::Generator generator_at(const RandomPlace& place) {
  const uint64_t mixed = (place.seed ^ (place.offset + 0x9e3779b97f4a7c15u)) * 0xbf58476d1ce4e5b9u;
  return at::make_generator<at::CPUGeneratorImpl>(mixed ^ (mixed >> 31));
}

}  // namespace cuda_sim
