#include "distributed/replica_random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/exponential.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/normal.h>
#include <ATen/ops/random.h>
#include <ATen/ops/uniform.h>
#include <torch/library.h>

#include <optional>

namespace trainkit {
namespace {

// Note [Replica generators]
// ~~~~~~~~~~~~~~~~~~~~~~~~~
// Replicas run in threads. Threads that share one generator draw in an unpredictable order, and ranks with one seed
// drop the same neurons. Each replica therefore draws from a generator seeded from the step and the replica, which
// makes runs repeatable.
//
// Model code calls at::dropout and similar operations without a generator argument. To supply one, the guard includes a
// dispatch key in the thread-local set: the kernels below are registered under it, add the generator, exclude the key
// and call the operation again. The key is TESTING_ONLY_GenericMode, which LibTorch itself does not use; all other
// operations fall through. randperm and CUDA tensors are not redirected: on a GPU the device's default generator is
// seeded instead (ReplicaRandom).

constexpr c10::DispatchKey kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

thread_local at::Generator* replica_generator = nullptr;

using OptionalGenerator = std::optional<at::Generator>;

/// Returns `asked`, or the replica's generator if none was passed.
OptionalGenerator generator_for(const at::Tensor& self, const OptionalGenerator& asked) {
  if (!asked && self.is_cpu() && replica_generator) return *replica_generator;
  return asked;
}

// One kernel per random operation: it fills in the generator and redispatches below the key.
at::Tensor& bernoulli_p(at::Tensor& self, double p, OptionalGenerator gen) {
  const c10::impl::ExcludeDispatchKeyGuard below(kKey);
  return self.bernoulli_(p, generator_for(self, gen));
}
at::Tensor& bernoulli_tensor(at::Tensor& self, const at::Tensor& p, OptionalGenerator gen) {
  const c10::impl::ExcludeDispatchKeyGuard below(kKey);
  return self.bernoulli_(p, generator_for(self, gen));
}
at::Tensor& uniform(at::Tensor& self, double from, double to, OptionalGenerator gen) {
  const c10::impl::ExcludeDispatchKeyGuard below(kKey);
  return self.uniform_(from, to, generator_for(self, gen));
}
at::Tensor& normal(at::Tensor& self, double mean, double std, OptionalGenerator gen) {
  const c10::impl::ExcludeDispatchKeyGuard below(kKey);
  return self.normal_(mean, std, generator_for(self, gen));
}
at::Tensor& exponential(at::Tensor& self, double lambd, OptionalGenerator gen) {
  const c10::impl::ExcludeDispatchKeyGuard below(kKey);
  return self.exponential_(lambd, generator_for(self, gen));
}
at::Tensor& random_from(at::Tensor& self, int64_t from, std::optional<int64_t> to, OptionalGenerator gen) {
  const c10::impl::ExcludeDispatchKeyGuard below(kKey);
  return self.random_(from, to, generator_for(self, gen));
}
at::Tensor& random_to(at::Tensor& self, int64_t to, OptionalGenerator gen) {
  const c10::impl::ExcludeDispatchKeyGuard below(kKey);
  return self.random_(to, generator_for(self, gen));
}
at::Tensor& random_any(at::Tensor& self, OptionalGenerator gen) {
  const c10::impl::ExcludeDispatchKeyGuard below(kKey);
  return self.random_(generator_for(self, gen));
}
at::Tensor multinomial(const at::Tensor& self, c10::SymInt samples, bool replacement, OptionalGenerator gen) {
  const c10::impl::ExcludeDispatchKeyGuard below(kKey);
  return at::multinomial_symint(self, samples, replacement, generator_for(self, gen));
}
at::Tensor bernoulli(const at::Tensor& self, OptionalGenerator gen) {
  const c10::impl::ExcludeDispatchKeyGuard below(kKey);
  return at::bernoulli(self, generator_for(self, gen));
}
// clang-format on

}  // namespace

// See Note [Replica generators].
TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) { library.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericMode, library) {
  library.impl("bernoulli_.float", bernoulli_p);
  library.impl("bernoulli_.Tensor", bernoulli_tensor);
  library.impl("bernoulli", bernoulli);
  library.impl("uniform_", uniform);
  library.impl("normal_", normal);
  library.impl("exponential_", exponential);
  library.impl("random_.from", random_from);
  library.impl("random_.to", random_to);
  library.impl("random_", random_any);
  library.impl("multinomial", multinomial);
}

ReplicaRandomGuard::ReplicaRandomGuard(uint64_t seed)
    : generator_(at::make_generator<at::CPUGeneratorImpl>(seed)),
      previous_(std::exchange(replica_generator, &generator_)),
      include_(kKey) {}

ReplicaRandomGuard::~ReplicaRandomGuard() { replica_generator = previous_; }

at::Generator current_cpu_generator() {
  return replica_generator ? *replica_generator : at::detail::getDefaultCPUGenerator();
}

}  // namespace trainkit
