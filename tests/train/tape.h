#pragma once
/// Records work on the CPU, as a CUDA graph does on a GPU, one operation at a time.
///
/// Each operation below autograd is recorded with its tensors. A replay calls the operations again on the same memory
/// and copies the results to the recorded addresses; no other code of the step runs. Values that a step does not
/// compute with LibTorch stay unchanged, as in a CUDA graph.

#include <torch/library.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "train/graph/step_graphs.h"

namespace trainkit::test {

constexpr c10::DispatchKey kTapeKey = c10::DispatchKey::Fake;

class Tape final : public detail::GraphBackend::Graph {
 public:
  void record(const c10::OperatorHandle& operation, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const c10::impl::ExcludeDispatchKeyGuard once(kTapeKey);
    const size_t count = operation.schema().arguments().size();
    Entry entry{operation, {stack->end() - static_cast<ptrdiff_t>(count), stack->end()}, {}};
    operation.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kTapeKey), stack);
    entry.outputs = {stack->end() - static_cast<ptrdiff_t>(operation.schema().returns().size()), stack->end()};
    for (auto* values : {&entry.inputs, &entry.outputs}) {
      for (c10::IValue& value : *values) value = same_memory(value);
    }
    entries_.push_back(std::move(entry));
  }

  void replay() override {
    const at::NoGradGuard no_grad;
    for (const Entry& entry : entries_) {
      torch::jit::Stack stack = entry.inputs;
      entry.operation.callBoxed(&stack);
      for (size_t i = 0; i < entry.outputs.size(); ++i) write(stack[i], entry.outputs[i]);
    }
  }

 private:
  struct Entry {
    c10::OperatorHandle operation;
    torch::jit::Stack inputs, outputs;
  };

  /// The same memory in another tensor: autograd reuses tensors that have no other owner and must not count this one.
  static at::Tensor same_memory(const at::Tensor& tensor) {
    return tensor.defined() && !tensor.unsafeGetTensorImpl()->is_wrapped_number() ? tensor.tensor_data() : tensor;
  }
  static c10::IValue same_memory(const c10::IValue& value) {
    if (value.isTensor()) return same_memory(value.toTensor());
    if (!value.isTensorList()) return value;
    c10::List<at::Tensor> tensors;
    for (const at::Tensor& tensor : value.toTensorVector()) tensors.push_back(same_memory(tensor));
    return tensors;
  }
  static void write(const at::Tensor& from, const at::Tensor& to) {
    if (from.defined() && from.numel() > 0 && from.const_data_ptr() != to.const_data_ptr()) at::Tensor(to).copy_(from);
  }
  static void write(const c10::IValue& from, const c10::IValue& to) {
    if (from.isTensor()) return write(from.toTensor(), to.toTensor());
    if (!from.isTensorList()) return;
    const auto all = from.toTensorVector(), there = to.toTensorVector();
    for (size_t i = 0; i < all.size(); ++i) write(all[i], there[i]);
  }

  std::vector<Entry> entries_;
};

class TapeBackend final : public detail::GraphBackend {
 public:
  /// `live`: tensors that a step writes and the next step reads. A recording leaves them unchanged.
  explicit TapeBackend(std::function<std::vector<at::Tensor>()> live) : live_(std::move(live)) {
    static torch::Library library = [] {
      torch::Library made(torch::Library::IMPL, "_", kTapeKey, __FILE__, __LINE__);
      made.fallback(torch::CppFunction::makeFromBoxedFunction<&TapeBackend::operation>());
      return made;
    }();
  }

  void run_beside(const std::function<void()>& work) override { work(); }

  std::unique_ptr<Graph> capture(const std::function<void()>& work) override {
    const std::vector<at::Tensor> live = live_();
    std::vector<at::Tensor> before;
    for (const at::Tensor& tensor : live) before.push_back(tensor.detach().clone());
    auto tape = std::make_unique<Tape>();
    std::exception_ptr failed;
    try {
      const c10::impl::IncludeDispatchKeyGuard taped(kTapeKey);
      current() = tape.get();
      work();
    } catch (...) {
      failed = std::current_exception();
    }
    current() = nullptr;
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < live.size(); ++i) at::Tensor(live[i]).copy_(before[i]);
    if (failed) std::rethrow_exception(failed);
    return tape;
  }

 private:
  static Tape*& current() {
    static Tape* tape = nullptr;
    return tape;
  }
  static void operation(const c10::OperatorHandle& operation, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    current()->record(operation, keys, stack);
  }

  std::function<std::vector<at::Tensor>()> live_;
};

}  // namespace trainkit::test
