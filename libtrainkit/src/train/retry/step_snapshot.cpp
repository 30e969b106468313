#include "train/retry/step_snapshot.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include <mutex>
#include <new>
#include <type_traits>

#include "core/tensors/tensor_lists.h"
#include "distributed/replicas/replica_tools.h"

namespace trainkit::detail {

namespace {

static_assert(std::is_trivially_destructible_v<at::mt19937>);

/// Returns the implementation of the CPU generator, whose engine can be copied without allocating.
at::CPUGeneratorImpl* cpu(at::Generator& generator) { return at::check_generator<at::CPUGeneratorImpl>(generator); }

}  // namespace

StepSnapshot::StepSnapshot(const DeviceReplicator& devices)
    : cpu_generator_(at::globalContext().defaultGenerator(at::kCPU)) {
  for (int64_t replica = 0; replica < devices.replicas(); ++replica) {
    const at::Device device = devices.device(replica);
    if (!device.is_cpu()) device_generators_.push_back(at::globalContext().defaultGenerator(device));
    for (const at::Tensor& buffer : devices.module(replica)->buffers()) {
      if (buffer.defined()) buffers_.push_back(buffer);
    }
  }
}

void StepSnapshot::take() {
  {
    const std::lock_guard lock(cpu_generator_.mutex());
    at::CPUGeneratorImpl* generator = cpu(cpu_generator_);
    new (&kept_engine_) at::mt19937(generator->engine());  // without a temporary of 2.5 KB
    kept_normal_ = generator->next_float_normal_sample();
    kept_double_normal_ = generator->next_double_normal_sample();
  }
  kept_generators_.clear();
  for (at::Generator& generator : device_generators_) {
    const std::lock_guard lock(generator.mutex());
    kept_generators_.push_back(generator.clone());
  }
  take_buffers();
}

void StepSnapshot::take_buffers() {
  if (buffers_.empty()) return;
  const c10::AutoGradMode no_grad(false);
  if (kept_buffers_.empty()) {
    std::vector<at::Tensor> kept;
    for (const at::Tensor& buffer : buffers_) kept.push_back(at::empty_like(buffer));
    kept_buffers_ = std::move(kept);
  }
  copy_together(kept_buffers_, buffers_);
}

void StepSnapshot::take_for_skip() {
  const c10::AutoGradMode no_grad(false);
  while (skip_buffers_.size() < buffers_.size())
    skip_buffers_.push_back(at::empty_like(buffers_[skip_buffers_.size()]));
  copy_together(skip_buffers_, buffers_);
}

void StepSnapshot::restore() {
  const c10::AutoGradMode no_grad(false);
  {
    const std::lock_guard lock(cpu_generator_.mutex());
    cpu(cpu_generator_)->set_engine(kept_engine_);
    cpu(cpu_generator_)->set_next_float_normal_sample(kept_normal_);
    cpu(cpu_generator_)->set_next_double_normal_sample(kept_double_normal_);
  }
  for (size_t i = 0; i < device_generators_.size(); ++i) {
    const std::lock_guard lock(device_generators_[i].mutex());
    device_generators_[i].set_state(kept_generators_[i].get_state());
  }
  copy_together(uncounted(buffers_), kept_buffers_);
}

void StepSnapshot::restore_buffers_if(const at::Tensor& found_inf) {
  const c10::AutoGradMode no_grad(false);
  copy_together(uncounted(buffers_), skip_buffers_.empty() ? kept_buffers_ : skip_buffers_, found_inf);
}

}  // namespace trainkit::detail
