// Operations that have kernels of their own to spare launches: the results of LibTorch's operations.
#include <c10/cuda/CUDAFunctions.h>
#include <torch/torch.h>

#include <limits>

#include "core/device/gpu_operations.h"
#include "core/device/late_scalars.h"
#include "core/tensors/tensor_lists.h"
#include "cuda_sim_control.h"
#include "test_util.h"
#include "trainkit/optim/optimizer.h"
#include "trainkit/optim/sgd.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

const at::Device kDevice(at::kCUDA, 0);

int64_t count_of(const char* name, const std::function<void()>& work) {
  const auto before = cuda_sim_counts()[name].get<int64_t>();
  work();
  return cuda_sim_counts()[name].get<int64_t>() - before;
}

/// Gradients after clip_grad_norm_, then the norm; and the launches of it.
struct Clipped {
  Clipped(const std::vector<at::Tensor>& gradients, double max_norm, bool has_kernels) {
    std::vector<NamedParameter> parameters;
    for (const at::Tensor& gradient : gradients) {
      const at::Tensor parameter = torch::zeros_like(gradient).requires_grad_();
      parameter.mutable_grad() = gradient.clone();
      parameters.push_back({std::to_string(parameters.size()), parameter});
      results.push_back(parameter.grad());
    }
    SGD optimizer;
    optimizer.add_param_group({.params = parameters});
    const trainkit::detail::GpuOperations operations(/*on=*/true, has_kernels);
    launches = count_of("launches", [&] { results.push_back(clip_grad_norm_(optimizer, max_norm)); });
  }
  std::vector<at::Tensor> results;
  int64_t launches = 0;
};

/// Launches of clipping with our kernels, and with LibTorch's operations, of which each version needs another number.
struct Launches {
  int64_t ours, theirs;
};

/// Compares clipping with our kernels with LibTorch's operations.
Launches compare_clipping(const std::vector<at::Tensor>& gradients, double max_norm) {
  const Clipped by_kernels(gradients, max_norm, true), by_libtorch(gradients, max_norm, false);
  for (size_t i = 0; i < by_kernels.results.size(); ++i) {
    INFO(i);
    CHECK(by_kernels.results[i].scalar_type() == by_libtorch.results[i].scalar_type());
    CHECK(torch::allclose(by_kernels.results[i].cpu(), by_libtorch.results[i].cpu(), 1e-6, 0, /*equal_nan=*/true));
  }
  return {by_kernels.launches, by_libtorch.launches};
}

std::vector<at::Tensor> gradients_of(size_t count) {
  torch::manual_seed(7);
  std::vector<at::Tensor> gradients;
  for (size_t i = 0; i < count; ++i)
    gradients.push_back(torch::randn({static_cast<int64_t>(1 + i % 7), 37}).to(kDevice));
  return gradients;
}

}  // namespace

TEST_CASE("Clipping on a GPU equals LibTorch's operations within rounding, with fewer launches",
          "[cuda_sim][launches]") {
  std::vector<at::Tensor> gradients = gradients_of(9);
  gradients.push_back(torch::randn({40, 50}).to(kDevice).t());
  gradients.push_back(torch::randn({}).to(kDevice));
  gradients.push_back(torch::empty({0, 3}).to(kDevice));
  for (const double max_norm : {1e-60, 1e-3, 1.0, 7.3, 1e6}) {
    INFO(max_norm);
    const Launches launches = compare_clipping(gradients, max_norm);
    CHECK(launches.ours == 3);
    CHECK(launches.theirs > launches.ours);
  }
  for (const double number : {std::numeric_limits<double>::infinity(), std::nan(""), 1e30, 0.0}) {
    INFO(number);
    gradients[4].fill_(number);
    CHECK(compare_clipping(gradients, 1).ours == 3);
  }
  CHECK(take_cuda_sim_findings().empty());
}

TEST_CASE("Clipping on a GPU takes any number of tensors", "[cuda_sim][launches]") {
  for (const size_t count : {1, 127, 128, 129, 300}) {
    INFO(count);
    const Launches launches = compare_clipping(gradients_of(count), 0.5);
    CHECK(launches.theirs > launches.ours);
  }
  CHECK(take_cuda_sim_findings().empty());
}

TEST_CASE("Gradients without a kernel are clipped by LibTorch", "[cuda_sim][launches]") {
  for (const at::ScalarType type : {at::kDouble, at::kBFloat16}) {
    std::vector<at::Tensor> gradients = gradients_of(5);
    gradients[2] = gradients[2].to(type);
    const Launches launches = compare_clipping(gradients, 0.5);
    CHECK(launches.theirs == launches.ours);
  }
}

TEST_CASE("Scaling by a number of the device equals a multiplication", "[cuda_sim][launches]") {
  for (const float by : {1.0f, 0.75f, 0.0f, -3.0f}) {
    const std::vector<at::Tensor> gradients = gradients_of(130);
    std::vector<at::Tensor> expected;
    for (const at::Tensor& gradient : gradients) expected.push_back(gradient.mul(by));
    REQUIRE(trainkit::detail::has_list_kernels(gradients));
    trainkit::detail::scale_by_kernel(gradients, torch::tensor(by).to(kDevice));
    for (size_t i = 0; i < gradients.size(); ++i) CHECK(torch::equal(gradients[i].cpu(), expected[i].cpu()));
  }
}

TEST_CASE("LateScalars copies a single scalar of any dtype without a launch", "[cuda_sim][launches]") {
  for (const at::ScalarType type :
       {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kInt, at::kLong, at::kByte, at::kBool}) {
    INFO(type);
    const at::Tensor scalar = torch::tensor(1.0).to(type).to(kDevice);
    std::optional<LateScalars> late;
    CHECK(count_of("launches", [&] { late.emplace(std::vector{scalar}); }) == 0);
    CHECK(late->values() == std::vector<double>{1});
  }
  CHECK(count_of("pageable", [] { LateScalars({torch::ones({}, kDevice)}); }) == 0);
  const at::Tensor weight = torch::full({}, 2.5f, kDevice).requires_grad_();
  CHECK(LateScalars({weight * 2}).values() == std::vector<double>{5});
  const std::vector<double> several =
      LateScalars({weight, torch::ones({}, kDevice).to(at::kLong), at::Tensor()}).values();
  CHECK(several[0] == 2.5);
  CHECK(several[1] == 1);
  CHECK(std::isnan(several[2]));
  CHECK(take_cuda_sim_findings().empty());
}
