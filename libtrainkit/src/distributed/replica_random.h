#pragma once
/// Random numbers of a replica's own, without a generator in every call.

#include <ATen/core/Generator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>

namespace trainkit {

/// Inside the scope, and in this thread, the operations that would draw from LibTorch's default CPU generator (dropout,
/// bernoulli_, uniform_, normal_, exponential_, random_, multinomial and all that are made of them: rand, randn, ...)
/// draw from a generator that begins at `seed`. randperm and operations on CUDA tensors are left alone.
///
/// Replicas run in threads, and threads that share one generator draw in an order that nobody knows; ranks that share
/// a seed drop the same neurons. With a seed that is a function of the step and the replica, neither happens, and a run
/// is the same each time. Scopes nest.
class [[nodiscard]] ReplicaRandomGuard {
 public:
  explicit ReplicaRandomGuard(uint64_t seed);
  ~ReplicaRandomGuard();
  ReplicaRandomGuard(const ReplicaRandomGuard&) = delete;
  ReplicaRandomGuard& operator=(const ReplicaRandomGuard&) = delete;

 private:
  at::Generator generator_;
  at::Generator* previous_;
  c10::impl::IncludeDispatchKeyGuard include_;
};

/// What operations on CPU tensors draw from in this thread: the guard's generator, or LibTorch's default.
at::Generator current_cpu_generator();

}  // namespace trainkit
