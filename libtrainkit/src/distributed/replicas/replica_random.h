#pragma once
/// Random numbers per replica, without a generator argument in every call.

#include <ATen/core/Generator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>

namespace trainkit {

/// Redirects LibTorch's default CPU generator in this thread to a generator seeded with `seed`, for the scope's
/// lifetime. Affects every operator that takes a generator and is called without one, and all operators built on them
/// (rand, dropout, ...). Does not affect operators on CUDA tensors. Scopes nest. See Note [Replica generators].
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

/// Whether a guard redirects the draws of this thread.
bool draws_from_replica();

/// Returns the generator of CPU operations in this thread: the guard's, or LibTorch's default.
at::Generator current_cpu_generator();

}  // namespace trainkit
