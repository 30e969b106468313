#include "fibers.h"

#include <sys/mman.h>

#include <cstdlib>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#define CUDA_SIM_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CUDA_SIM_ASAN 1
#endif
#endif

#ifdef CUDA_SIM_ASAN  // without its headers, which are not always installed
extern "C" {
void __sanitizer_start_switch_fiber(void** save, const void* bottom, size_t bytes);
void __sanitizer_finish_switch_fiber(void* saved, const void** bottom, size_t* bytes);
void __asan_unpoison_memory_region(const volatile void* begin, size_t bytes);
}
#endif

namespace cuda_sim {
namespace {

constexpr size_t kGuardBytes = 4096;
thread_local Fiber* starting = nullptr;

#ifdef CUDA_SIM_ASAN
void announce(void** save, const void* bottom, size_t bytes) { __sanitizer_start_switch_fiber(save, bottom, bytes); }
void arrive(void* saved, const void** bottom, size_t* bytes) { __sanitizer_finish_switch_fiber(saved, bottom, bytes); }
void unpoison(const void* bottom, size_t bytes) { __asan_unpoison_memory_region(bottom, bytes); }
#else
void announce(void**, const void*, size_t) {}
void arrive(void*, const void**, size_t*) {}
void unpoison(const void*, size_t) {}
#endif

}  // namespace

#ifndef CUDA_SIM_UCONTEXT
extern "C" void cuda_sim_switch_stacks(void** save, void* to);
// Pushes callee-saved registers to the old stack and pops them from the new one. ucontext does the same with two system
// calls.
__asm__(R"(
.text
.globl cuda_sim_switch_stacks
.hidden cuda_sim_switch_stacks
.type cuda_sim_switch_stacks, @function
cuda_sim_switch_stacks:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size cuda_sim_switch_stacks, .-cuda_sim_switch_stacks
)");
#endif

Fiber::Fiber(std::function<void(Fiber&)> work) : work_(std::move(work)) {
  void* memory = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, kGuardBytes, PROT_NONE) != 0) abort();
  stack_ = static_cast<char*>(memory) + kGuardBytes;
  reset();
}

Fiber::~Fiber() {
  unpoison(stack_, kStackBytes);
  munmap(stack_ - kGuardBytes, kGuardBytes + kStackBytes);
}

void Fiber::start() {
  Fiber* const self = starting;
  arrive(nullptr, &self->outside_bottom_, &self->outside_bytes_);
  self->work_(*self);
  abort();
}

void Fiber::reset() {
  unpoison(stack_, kStackBytes);
  fake_stack_inside_ = nullptr;
#ifdef CUDA_SIM_UCONTEXT
  getcontext(&inside_);
  inside_.uc_stack.ss_sp = stack_;
  inside_.uc_stack.ss_size = kStackBytes;
  inside_.uc_link = nullptr;
  makecontext(&inside_, &Fiber::start, 0);
#else
  constexpr int kRegisters = 6;
  // Stacks at different offsets, so that fibres that run in turns do not evict each other from one set of the cache.
  static thread_local size_t fibers = 0;
  constexpr size_t kColours = 61, kLine = 64;
  auto** top = reinterpret_cast<void**>(stack_ + kStackBytes - fibers++ % kColours * 3 * kLine);
  *--top = nullptr;  // return address of start(); its position aligns the stack as a call does
  *--top = reinterpret_cast<void*>(&Fiber::start);
  for (int i = 0; i < kRegisters; ++i) *--top = nullptr;
  inside_ = top;
#endif
}

void Fiber::enter() {
  starting = this;
  announce(&fake_stack_outside_, stack_, kStackBytes);
#ifdef CUDA_SIM_UCONTEXT
  swapcontext(&outside_, &inside_);
#else
  cuda_sim_switch_stacks(&outside_, inside_);
#endif
  arrive(fake_stack_outside_, nullptr, nullptr);
}

void Fiber::leave() {
  announce(&fake_stack_inside_, outside_bottom_, outside_bytes_);
#ifdef CUDA_SIM_UCONTEXT
  swapcontext(&inside_, &outside_);
#else
  cuda_sim_switch_stacks(&inside_, outside_);
#endif
  arrive(fake_stack_inside_, &outside_bottom_, &outside_bytes_);
}

}  // namespace cuda_sim
