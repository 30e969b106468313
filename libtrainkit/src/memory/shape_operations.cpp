#include "memory/shape_operations.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/native/TypeProperties.h>
#include <c10/core/DispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/device/gpu_operations.h"
#include "memory/shape_kernels.h"

namespace trainkit::detail {
namespace {

// Note [Shapes without values]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// LibTorch's dispatcher calls run_shapes, instead of the CPU's kernel, in threads that include kShapesKey. Most of
// LibTorch's operations have a kernel for the device "meta", which returns sizes, strides and dtypes; shape_kernels.cpp
// adds frequent ones. run_shapes calls it and allocates such results. Operations without one run as always.
//
// The results are zeros, in memory that nobody has touched (RecordedMemory::kUntouched): a kernel that does run,
// LibTorch's or a user's, finds valid indices and no NaN, and a model needs no physical memory.
//
// Values are unknown if they were not computed, or were computed from unknown ones; the parameters of the model are.
// Operations on known values run: masks and positions of the batch, the gradient 1 of a loss, and tensors that outlive
// the recording, since a model makes them in its first step. Random numbers do not, unless there are few, since most
// are initial weights and dropout. Operations that read values for the host or for a shape (LibTorch's tags
// data_dependent_output and dynamic_output_shape) are refused if these are unknown: the step then has to be computed.
// Not noticed are reads through data_ptr() and accessors, which find zeros.
//
// Elementwise operations on the CPU convert inputs of different dtypes in temporary tensors, which the meta device does
// not have, and means of 16-bit numbers convert theirs to float32; run_shapes allocates them. Which copies a 16-bit
// convolution on the CPU makes depends on the processor, for which oneDNN chooses the layout: it is refused too.

using torch::jit::Stack;

thread_local MemoryRecorder* recorder_of_thread = nullptr;
thread_local bool has_refused = false;

constexpr int64_t kFew = 4096;  // random numbers that are drawn

enum class Way {
  kRun,     // views, and operations that call others
  kKernel,  // has no meta kernel
  kReads,   // for the host or for a shape
  kCopy,
  kShapes  // has a meta kernel
};

struct Operation {
  Way way = Way::kRun;
  bool is_pointwise = false, is_random = false, is_zero = false, is_mean = false, is_convolution = false;
  /// Arguments whose values are not read: results of out=, and `self` of operations that overwrite it.
  std::vector<bool> overwritten = {};
  std::vector<size_t> written = {};
};

bool is_view(const c10::FunctionSchema& schema) {
  return std::any_of(schema.returns().begin(), schema.returns().end(), [](const c10::Argument& result) {
    return result.alias_info() && !result.alias_info()->isWrite();
  });
}

bool changes_metadata(const c10::OperatorHandle& op) {
  const std::string_view name = op.operator_name().name;
  return op.hasTag(at::Tag::inplace_view) || name == "aten::set_" || name == "aten::resize_";
}

Way way_of(const c10::OperatorHandle& op) {
  const std::string_view name = op.operator_name().name;
  if (name == "aten::copy_") return Way::kCopy;
  const bool reads = op.hasTag(at::Tag::data_dependent_output) || op.hasTag(at::Tag::dynamic_output_shape);
  if (reads && name != "aten::index") return Way::kReads;  // only index with a mask, which calls nonzero
  const bool is_ours = name.starts_with("aten::convolution") || op.operator_name().overload_name == "dtype_out";
  const bool has_kernel = is_ours || op.hasKernelForDispatchKey(c10::DispatchKey::CPU);
  if (!has_kernel) return Way::kRun;
  if (is_view(op.schema()) || changes_metadata(op)) return Way::kRun;
  return op.hasKernelForDispatchKey(c10::DispatchKey::Meta) ? Way::kShapes : Way::kKernel;
}

bool draws(std::string_view name) {
  constexpr std::array<std::string_view, 6> kNames = {"aten::normal_",     "aten::uniform_",
                                                      "aten::bernoulli_",  "aten::exponential_",
                                                      "aten::log_normal_", "aten::native_dropout"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

bool overwrites_self(std::string_view name) {
  return draws(name) || name == "aten::zero_" || name == "aten::fill_" || name == "aten::copy_" ||
         name == "aten::random_";
}

Operation description_of(const c10::OperatorHandle& op) {
  const std::string_view name = op.operator_name().name;
  Operation operation{.way = way_of(op),
                      .is_pointwise = op.hasTag(at::Tag::pointwise),
                      .is_random = draws(name),
                      .is_zero = name == "aten::zero_",
                      .is_mean = name == "aten::mean",
                      .is_convolution = name.starts_with("aten::convolution")};
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool is_written = arguments[i].alias_info() && arguments[i].alias_info()->isWrite();
    if (is_written) operation.written.push_back(i);
    operation.overwritten.push_back(arguments[i].is_out() || (is_written && i == 0 && overwrites_self(name)));
  }
  return operation;
}

const Operation& operation_of(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<const c10::FunctionSchema*, Operation> known;
  const auto found = known.find(&op.schema());
  return found != known.end() ? found->second : known.emplace(&op.schema(), description_of(op)).first->second;
}

/// Calls f(tensor) for each defined tensor in a value; f may replace it.
template <typename F>
c10::IValue with_tensors(const c10::IValue& value, const F& f) {
  if (value.isTensor()) return value.toTensor().defined() ? c10::IValue(f(value.toTensor())) : value;
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(tensor.defined() ? f(tensor) : tensor);
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      list.push_back(tensor && tensor->defined() ? std::optional(f(*tensor)) : tensor);
    }
    return list;
  }
  return value;
}

bool are_known(const Operation& operation, c10::ArrayRef<c10::IValue> arguments) {
  bool known = true;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (operation.overwritten[i]) continue;
    with_tensors(arguments[i], [&](const at::Tensor& tensor) {
      known = known && recorder_of_thread->is_known(tensor);
      return tensor;
    });
  }
  return known;
}

/// Calls the kernel of the CPU; operations that it calls come back here.
void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kShapesKey), stack);
}

void note(const c10::IValue& value, bool known) {
  with_tensors(value, [&](const at::Tensor& tensor) {
    recorder_of_thread->set_known(tensor, known);
    return tensor;
  });
}

/// Calls the kernel of the CPU, whose results are then as well known as its arguments.
void run_kernel(const Operation& operation, const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack,
                bool known) {
  const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
  Stack written;
  for (const size_t i : operation.written) written.push_back(arguments[i]);
  run(op, keys, stack);
  for (const c10::IValue& argument : written) note(argument, known);
  for (const c10::IValue& result : torch::jit::last(*stack, op.schema().returns().size())) note(result, known);
}

/// Returns whether an operation has more than kFew random results, which are not drawn.
bool draws_many(const Operation& operation, const Stack& results) {
  if (!operation.is_random) return false;
  return std::any_of(results.begin(), results.end(),
                     [](const c10::IValue& result) { return result.isTensor() && result.toTensor().numel() > kFew; });
}

/// The tensors of a call and their counterparts on the meta device.
class MetaCall {
 public:
  /// Calls the operation's meta kernel. Returns false if it has none for these tensors, or if it throws.
  bool run(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) try {
    for (const c10::IValue& argument : arguments) {
      stack_.push_back(with_tensors(argument, [this](const at::Tensor& tensor) { return meta_of(tensor); }));
    }
    if (!supported_) return false;
    const ComputeValues compute;
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &stack_);
    return true;
  } catch (const c10::Error&) {  // the CPU's kernel says what is wrong
    return false;
  }

  Stack& results() { return stack_; }
  const std::vector<std::pair<at::Tensor, at::Tensor>>& tensors() const { return tensors_; }

  /// Returns the argument that a result is; undefined if it is new.
  at::Tensor argument_of(const at::Tensor& result) const {
    const auto found = of_meta_.find(result.unsafeGetTensorImpl());
    return found == of_meta_.end() ? at::Tensor() : tensors_[found->second].first;
  }

 private:
  at::Tensor meta_of(const at::Tensor& tensor) {
    const auto known = of_real_.find(tensor.unsafeGetTensorImpl());
    if (known != of_real_.end()) return tensors_[known->second].second;
    supported_ = supported_ && tensor.is_cpu() && tensor.layout() == at::kStrided && !tensor.is_quantized();
    if (!supported_) return tensor;
    at::Tensor meta = at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) meta.unsafeGetTensorImpl()->set_wrapped_number(true);
    of_real_.emplace(tensor.unsafeGetTensorImpl(), tensors_.size());
    of_meta_.emplace(meta.unsafeGetTensorImpl(), tensors_.size());
    tensors_.emplace_back(tensor, meta);
    return meta;
  }

  Stack stack_;
  std::vector<std::pair<at::Tensor, at::Tensor>> tensors_;                // real, meta
  std::unordered_map<const c10::TensorImpl*, size_t> of_real_, of_meta_;  // their places: lists may have many tensors
  bool supported_ = true;
};

/// Allocates the temporary tensors of an elementwise operation or a mean on the CPU: inputs in the dtype that it
/// computes in.
std::vector<at::Tensor> converted_inputs(const Operation& operation, const MetaCall& call) {
  std::vector<at::Tensor> converted;
  if (GpuOperations::wanted() || call.tensors().empty()) return converted;
  if (const at::Tensor& first = call.tensors().front().first;
      operation.is_mean && at::isReducedFloatingType(first.scalar_type())) {
    converted.emplace_back(at::detail::empty_cpu(first.sizes(), first.options().dtype(at::kFloat)));
  }
  if (!operation.is_pointwise) return converted;
  at::native::ResultTypeState state;
  for (const auto& [tensor, meta] : call.tensors()) state = at::native::update_result_type_state(tensor, state);
  const at::ScalarType common = at::native::result_type(state);
  for (const auto& [tensor, meta] : call.tensors()) {
    if (tensor.scalar_type() == common) continue;
    converted.emplace_back(at::detail::empty_cpu(tensor.sizes(), tensor.options().dtype(common)));
  }
  return converted;
}

/// Returns the tensor of a call's result: an argument, resized if need be, or a new one.
at::Tensor real_result(const MetaCall& call, const at::Tensor& meta) {
  at::Tensor argument = call.argument_of(meta);
  if (!argument.defined()) {
    return at::Tensor(at::detail::empty_strided_cpu(meta.sizes(), meta.strides(), meta.scalar_type()));
  }
  if (argument.sizes() != meta.sizes()) argument.resize_(meta.sizes());
  return argument;
}

void run_meta(const Operation& operation, const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const size_t count = op.schema().arguments().size();
  const auto arguments = torch::jit::last(*stack, count);
  const bool has_tensors = std::any_of(arguments.begin(), arguments.end(), [](const c10::IValue& argument) {
    return argument.isTensor() || argument.isTensorList() || argument.isOptionalTensorList();
  });
  if (!has_tensors) return run(op, keys, stack);                                         // makes a tensor
  if (operation.is_zero && recorder_of_thread->is_untouched(arguments[0].toTensor())) {  // it has zeros
    return note(stack->back(), true);
  }
  const bool known = are_known(operation, arguments);
  MetaCall call;
  if (!call.run(op, arguments) || (known && !draws_many(operation, call.results()))) {
    return run_kernel(operation, op, keys, stack, known);
  }
  const std::vector<at::Tensor> temporary = converted_inputs(operation, call);
  Stack results;
  for (const c10::IValue& result : call.results()) {
    results.push_back(with_tensors(result, [&](const at::Tensor& meta) { return real_result(call, meta); }));
    note(results.back(), false);
  }
  for (const size_t i : operation.written) note(arguments[i], false);
  torch::jit::drop(*stack, count);
  for (c10::IValue& result : results) stack->push_back(std::move(result));
}

/// copy_(self, source, non_blocking), which has no meta kernel.
void copy(const Operation& operation, const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const at::Tensor to = (*stack)[stack->size() - 3].toTensor(), from = (*stack)[stack->size() - 2].toTensor();
  const bool known = recorder_of_thread->is_known(from);
  if (known || to.sizes() != from.sizes()) return run_kernel(operation, op, keys, stack, known);
  torch::jit::drop(*stack, 3);
  recorder_of_thread->set_known(to, false);
  stack->emplace_back(to);
}

/// Returns whether aten::equal needs no values: tensors of different sizes, or a tensor and itself, for which
/// torch::nn::MultiheadAttention asks.
bool is_plainly_answered(const c10::OperatorHandle& op, const Stack& stack) {
  if (op.operator_name().name != "aten::equal") return false;
  const at::Tensor &a = stack[stack.size() - 2].toTensor(), &b = stack.back().toTensor();
  return a.sizes() != b.sizes() ||
         (a.const_data_ptr() == b.const_data_ptr() && a.strides() == b.strides() && a.dtype() == b.dtype());
}

/// Returns whether the copies that a convolution makes depend on the processor.
bool has_unknown_copies(const Operation& operation, const c10::OperatorHandle& op, const Stack& stack) {
  if (!operation.is_convolution || GpuOperations::wanted()) return false;
  return at::isReducedFloatingType(torch::jit::last(stack, op.schema().arguments().size())[0].toTensor().scalar_type());
}

[[noreturn]] void refuse(const c10::OperatorHandle& op, const char* why) {
  has_refused = true;
  TORCH_CHECK_NOT_IMPLEMENTED(false, op.operator_name().name, why);
}

/// See Note [Shapes without values].
void run_shapes(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const Operation& operation = operation_of(op);
  if (operation.way == Way::kRun || !recorder_of_thread) return run(op, keys, stack);
  if (operation.way == Way::kCopy) return copy(operation, op, keys, stack);
  if (has_unknown_copies(operation, op, *stack)) refuse(op, " in 16 bits makes copies that depend on the processor");
  if (operation.way == Way::kShapes) return run_meta(operation, op, keys, stack);
  const bool known =
      are_known(operation, torch::jit::last(*stack, op.schema().arguments().size())) || is_plainly_answered(op, *stack);
  if (operation.way == Way::kKernel) return run_kernel(operation, op, keys, stack, known);
  if (!known) refuse(op, " reads values that a memory plan does not compute");
  run(op, keys, stack);
}

void register_functions() {
  static torch::Library all(torch::Library::IMPL, "_", kShapesKey, __FILE__, __LINE__);
  all.fallback(torch::CppFunction::makeFromBoxedFunction<&run_shapes>());
  register_shape_kernels();
}

}  // namespace

ShapesOnly::ShapesOnly(MemoryRecorder& recorder) : guard_(kShapesKey) {
  static const bool is_registered = (register_functions(), true);
  static_cast<void>(is_registered);
  recorder_of_thread = &recorder;
  has_refused = false;
}

ShapesOnly::~ShapesOnly() { recorder_of_thread = nullptr; }

bool ShapesOnly::was_refused() { return has_refused; }

}  // namespace trainkit::detail
