#pragma once
/// Runs the library's own kernels as operations that are visible to profilers and to NaN checks.

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <functional>
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

namespace trainkit::detail {

inline std::vector<at::Tensor> tensors_of(const at::Tensor& tensor) { return {tensor}; }

/// Returns the result of run(), recorded as operation `name`. The result is a tensor, or has an overload of
/// tensors_of().
template <typename Run>
auto recorded(const char* name, std::initializer_list<std::reference_wrapper<const at::Tensor>> inputs,
              const Run& run) {
  at::RecordFunction operation(at::RecordScope::FUNCTION);
  if (!operation.isActive()) return run();
  std::vector<c10::IValue> values;
  if (operation.needsInputs()) {
    for (const at::Tensor& input : inputs) values.emplace_back(input);
  }
  operation.before(name, c10::ArrayRef<const c10::IValue>(values.data(), values.size()));
  auto result = run();
  if (operation.needsOutputs()) {
    std::vector<c10::IValue> outputs;
    for (const at::Tensor& tensor : tensors_of(result)) outputs.emplace_back(tensor);
    operation.setOutputs(std::move(outputs));
  }
  return result;
}

/// Marks the rest of the scope as an exchange between replicas or ranks. A comparison of steps leaves its operations
/// out: the replica that comes last does them.
class ExchangeScope {
 public:
  static constexpr char kName[] = "trainkit::exchange";

  ExchangeScope() : record_(at::RecordScope::FUNCTION) {
    if (record_.isActive()) record_.before(kName);
  }

 private:
  at::RecordFunction record_;
};

/// Shows the rest of the scope as a stage of a profile (TrainerOptions::profile_step). Costs some nanoseconds without
/// one.
class ProfileStage {
 public:
  explicit ProfileStage(const char* name) {
    auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
    if (callbacks) record_.emplace(*std::move(callbacks)).before(name);
  }

 private:
  std::optional<at::RecordFunction> record_;
};

}  // namespace trainkit::detail
