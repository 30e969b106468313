#pragma once
// What a step asks of LibTorch: whether it can be recorded, and whether it asks for the same each time.

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace at {
struct RecordFunction;
}

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
/// One at a time in a process: a second one waits.
class StepTrace {
 public:
  explicit StepTrace(at::Device device);
  ~StepTrace();
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  StepRecord finish();

 private:
  void begin(const at::RecordFunction& operation);
  void look_for_obstacle(const at::RecordFunction& operation);
  void stop();

  std::unique_lock<std::mutex> only_;
  std::mutex mutex_;
  at::Device device_;
  at::Generator host_generator_;
  at::Tensor host_state_;
  uint64_t handle_ = 0;  // at::CallbackHandle
  bool watching_ = true;
  StepRecord record_;
};

}  // namespace trainkit::detail
