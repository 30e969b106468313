#pragma once
// What a step asks of LibTorch: whether it can be recorded, and whether it asks for the same each time.

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "operation_watch.h"

namespace trainkit::detail {

struct StepRecord {
  struct Operation {
    std::string name;
    /// Of types, shapes and devices of tensors, and of the values of numbers. Not of where tensors lie.
    uint64_t arguments = 0;
    bool operator==(const Operation&) const = default;
  };
  std::vector<Operation> operations;
  /// The first thing that a recorded step could not do; empty if there was none.
  std::string obstacle;
};

/// Where two records of a step part, in words; empty if they are the same.
std::string difference(const StepRecord& before, const StepRecord& after);

/// Watches the operations of the thread that made it, and of autograd's threads that work for it, until finish().
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
