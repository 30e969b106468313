// What the trace of a step records, and how two traces are compared.
#include "train/graph/step_trace.h"

#include <ATen/ThreadLocalState.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <thread>

#include "test_util.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

trainkit::detail::StepRecord trace_of(const std::function<void()>& work) {
  trainkit::detail::StepTrace trace(at::kCPU);
  work();
  return trace.finish();
}

bool has_operation(const trainkit::detail::StepRecord& record, const std::string& name) {
  return std::any_of(record.operations.begin(), record.operations.end(), [&](const auto& o) { return o.name == name; });
}

}  // namespace

TEST_CASE("A trace records host reads, random draws and host memory", "[train][step_graphs]") {
  const at::Tensor one = torch::ones({2});
  CHECK(trace_of([&] { one.add(1).mul_(2); }).obstacle.empty());
  CHECK(trace_of([&] { one.sum().item<float>(); }).obstacle == "aten::item reads from the device");
  CHECK(trace_of([&] { (void)one.gt(0).nonzero(); }).obstacle == "aten::nonzero reads from the device");
  CHECK(trace_of([&] { torch::dropout(one, 0.5, true); }).obstacle == "random numbers are drawn on the CPU");
  auto generator = at::make_generator<at::CPUGeneratorImpl>(1);
  CHECK_THAT(trace_of([&] { at::randn({2}, generator); }).obstacle, Catch::Contains("its own random generator"));
  const at::Tensor elsewhere = at::empty({2}, at::kMeta);
  const auto taken = trace_of([&] { CHECK_THROWS(at::Tensor(one).copy_(elsewhere)); });  // the copy cannot read
  CHECK(taken.obstacle == "aten::copy_ copies from host memory");
  CHECK(trace_of([&] { at::Tensor(elsewhere).copy_(one); }).obstacle == "aten::copy_ copies to the host");
}

TEST_CASE("A trace records the operations of its own step, not those of other threads", "[train][step_graphs]") {
  const at::Tensor one = torch::ones({2});
  trainkit::detail::StepTrace trace(at::kCPU);
  one.add(1);
  std::thread([&] { one.mul(2); }).join();
  std::thread([&] { CHECK(has_operation(trace_of([&] { one.sub(2); }), "aten::sub")); }).join();  // concurrently
  const auto record = trace.finish();
  CHECK(has_operation(record, "aten::add"));
  CHECK_FALSE(has_operation(record, "aten::mul"));
  CHECK_FALSE(has_operation(record, "aten::sub"));
}

TEST_CASE("A thread that works for a step may outlive its trace", "[train][step_graphs]") {
  const at::Tensor one = torch::ones({2});
  std::optional<at::ThreadLocalState> state;
  const auto first = trace_of([&] { state.emplace(); });
  const auto work = [&] {
    const at::ThreadLocalStateGuard as_in_the_step(*state);
    one.mul(2);
  };
  std::thread(work).join();
  const auto second = trace_of([&] {
    one.add(1);
    std::thread(work).join();
  });
  CHECK(first.operations.empty());
  CHECK(has_operation(second, "aten::add"));
  CHECK_FALSE(has_operation(second, "aten::mul"));
}

TEST_CASE("Traces are compared by operations, shapes and numbers, not by addresses", "[train][step_graphs]") {
  const auto scaled = [](int64_t rows, double factor) {
    return trace_of([=] {
      at::Tensor x = torch::ones({rows}, at::requires_grad());
      (x * factor).sum().backward();
    });
  };
  CHECK(difference(scaled(2, 0.5), scaled(2, 0.5)).empty());
  CHECK_FALSE(difference(scaled(2, 0.5), scaled(2, 0.25)).empty());
  CHECK_FALSE(difference(scaled(2, 0.5), scaled(3, 0.5)).empty());
  const auto more = trace_of([] { torch::ones({2}).add(1).sub(1); });
  CHECK_THAT(difference(scaled(2, 0.5), more), Catch::Contains("aten::"));
}
