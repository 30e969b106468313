#pragma once
// Separate stacks that one thread of the operating system switches between.
#include <cstddef>
#include <cstdint>
#include <functional>

#if !defined(__x86_64__)
#define CUDA_SIM_UCONTEXT 1
#endif
#ifdef CUDA_SIM_UCONTEXT
#include <ucontext.h>
#endif

namespace cuda_sim {

/// A function that can be suspended and resumed many times. Belongs to the thread that created it.
class Fiber {
 public:
  /// @param work never returns.
  explicit Fiber(std::function<void(Fiber&)> work);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Runs `work` from its start or from where it was suspended until the next leave(). Call from the thread's own
  /// stack.
  void enter();
  /// Returns to the caller of enter(). Call from this fibre.
  void leave();
  /// Starts again at the next enter(), without destroying the objects on the stack.
  void reset();

  uintptr_t stack_begin() const { return reinterpret_cast<uintptr_t>(stack_); }
  uintptr_t stack_end() const { return stack_begin() + kStackBytes; }

 private:
  static constexpr size_t kStackBytes = size_t{256} << 10;  // committed on first access
  static void start();

  std::function<void(Fiber&)> work_;
  char* stack_;
#ifdef CUDA_SIM_UCONTEXT
  ucontext_t inside_, outside_;
#else
  void* inside_ = nullptr;  // stack pointers
  void* outside_ = nullptr;
#endif
  // For AddressSanitizer, which must know the stack.
  void* fake_stack_inside_ = nullptr;
  void* fake_stack_outside_ = nullptr;
  const void* outside_bottom_ = nullptr;
  size_t outside_bytes_ = 0;
};

}  // namespace cuda_sim
