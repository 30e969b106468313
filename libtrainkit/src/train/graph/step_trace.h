#pragma once
// Records the LibTorch operations of a step, to decide whether it can be captured and whether all steps are equal. See
// Note [Comparing steps].

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "train/graph/operation_watch.h"

namespace trainkit::detail {

/// Operations of one step, in order.
struct StepRecord {
  struct Operation {
    std::string name;
    /// Hash of types, shapes and devices of tensors, and of the values of numbers. Does not include addresses.
    uint64_t arguments = 0;
    bool operator==(const Operation&) const = default;
  };
  std::vector<Operation> operations;
  /// First operation that a captured step could not perform; empty if there was none.
  std::string obstacle;
};

/// Describes the first difference of two records; empty if they are equal.
std::string difference(const StepRecord& before, const StepRecord& after);

/// Records the operations of the thread that constructed it, and of autograd's threads that work for it, until
/// finish().
class StepTrace {
 public:
  explicit StepTrace(at::Device device);
  ~StepTrace();
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  StepRecord finish();

 private:
  class Observer;

  at::Generator host_generator_;
  at::Tensor host_state_;
  std::shared_ptr<Observer> observer_;
  std::optional<OperationWatch> watch_;
};

}  // namespace trainkit::detail
