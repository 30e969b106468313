#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <thread>

#include "optim/optimizer_parts.h"
#include "test_util.h"
#include "trainkit/optim/adagrad.h"
#include "trainkit/optim/adam.h"
#include "trainkit/optim/rmsprop.h"
#include "trainkit/optim/sgd.h"

namespace trainkit {
namespace {

/// The CPU allocator with a counter, and a fault on demand.
class CountingAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    ++count;
    if (fail_at >= 0 && fail_at-- == 0) TORCH_CHECK_WITH(OutOfMemoryError, false, "planted");
    return base_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return base_->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { base_->copy_data(to, from, bytes); }

  std::atomic<int64_t> count{0};
  std::atomic<int64_t> fail_at{-1};

 private:
  c10::Allocator* base_ = c10::GetCPUAllocator();
};

/// Installed for the rest of the program: earlier memory is freed by its own deleter.
CountingAllocator& allocator() {
  static auto& counting = *[] {
    auto* allocator = new CountingAllocator;
    c10::SetCPUAllocator(allocator, /*priority=*/100);
    return allocator;
  }();
  return counting;
}

struct Parameters {
  Parameters() {
    for (int i = 0; i < 6; ++i) list.push_back({c10::str("p", i), torch::randn({30 + i, 20}).requires_grad_()});
  }
  void backward() const {
    for (const NamedParameter& param : list) param.tensor.mutable_grad() = torch::randn_like(param.tensor);
  }
  std::vector<NamedParameter> list;
};

std::vector<std::unique_ptr<Optimizer>> optimizers(const Parameters& parameters) {
  std::vector<std::unique_ptr<Optimizer>> all;
  all.push_back(std::make_unique<AdamW>());
  all.push_back(std::make_unique<Adam>());
  all.push_back(std::make_unique<SGD>(SGDOptions{.momentum = 0.9, .nesterov = true}));
  all.push_back(std::make_unique<SGD>());
  all.push_back(std::make_unique<RMSprop>(RMSpropOptions{.momentum = 0.9, .centered = true}));
  all.push_back(std::make_unique<Adagrad>());
  for (const auto& optimizer : all) optimizer->add_param_group({.params = parameters.list});
  return all;
}

TEST_CASE("No step allocates tensor memory on the CPU, including the first and skipped ones") {
  const int64_t start = allocator().count;
  const Parameters parameters;
  CHECK(allocator().count > start);  // the counter works
  const at::Tensor fine = torch::zeros({}), overflow = torch::ones({});
  for (const auto& optimizer : optimizers(parameters)) {
    parameters.backward();
    const int64_t before = allocator().count;
    for (int step = 0; step < 3; ++step) {
      optimizer->step();
      optimizer->step_unless(fine);
      optimizer->step_unless(overflow);
      optimizer->zero_grad(/*set_to_none=*/false);
    }
    CHECK(allocator().count == before);
    CHECK(optimizer->step_count().item<int64_t>() == 6);
  }
}

TEST_CASE("A step with the same missing gradients as before allocates no tensor memory on the CPU") {
  allocator();
  const Parameters parameters;
  for (const auto& optimizer : optimizers(parameters)) {
    parameters.backward();
    parameters.list[2].tensor.mutable_grad().reset();
    optimizer->step();
    const int64_t before = allocator().count;
    optimizer->step();
    CHECK(allocator().count == before);
  }
}

TEST_CASE("Out of memory at any allocation of add_param_group or of a step leaves the optimizer unchanged") {
  const Parameters parameters;
  for (int64_t fault = 0;; ++fault) {
    AdamW optimizer;
    allocator().fail_at = fault;
    bool failed = false;
    try {
      optimizer.add_param_group({.params = parameters.list});
    } catch (const c10::OutOfMemoryError&) {
      failed = true;
    }
    allocator().fail_at = -1;
    CHECK(optimizer.param_groups().empty() == failed);
    if (!failed) {
      CHECK(fault >= 13);  // two tensors for each of six parameters, and the counts
      break;
    }
    REQUIRE(fault < 1000);
  }
  // A gradient of another layout must be copied: the only allocation that a step may make.
  AdamW optimizer;
  optimizer.add_param_group({.params = parameters.list});
  parameters.backward();
  for (const NamedParameter& param : parameters.list) {
    param.tensor.mutable_grad() = torch::randn({param.tensor.size(1), param.tensor.size(0)}).t();
  }
  for (int64_t fault = 0; fault < 6; ++fault) {
    std::vector<at::Tensor> before;
    for (const NamedParameter& param : parameters.list) before.push_back(param.tensor.detach().clone());
    allocator().fail_at = fault;
    CHECK_THROWS_AS(optimizer.step(), c10::OutOfMemoryError);
    allocator().fail_at = -1;
    for (size_t i = 0; i < before.size(); ++i) CHECK(torch::equal(parameters.list[i].tensor.detach(), before[i]));
    CHECK(optimizer.step_count().item<int64_t>() == 0);
    CHECK(detail::OptimizerParts::of(optimizer).counts.upper_bound() == 0);
  }
  optimizer.step();
  CHECK(optimizer.step_count().item<int64_t>() == 1);
}

}  // namespace
}  // namespace trainkit
