// The kernels of the optimizers on a GPU.
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>

#include "core/tensors/tensor_lists.h"
#include "cuda_sim/cuda_sim_control.h"
#include "test_util.h"
#include "trainkit/optim/adam.h"
#include "trainkit/optim/optimizer.h"

using namespace trainkit;
using namespace trainkit::test;

#define SKIP_WITHOUT_GPU() \
  if (!torch::cuda::is_available()) TRAINKIT_SKIP("no GPU that LibTorch can use")

namespace {

const at::Device kGpu(at::kCUDA, 0);

/// Random tensors of many sizes; some begin one value after a multiple of 16 bytes, one is channels_last.
std::vector<at::Tensor> random_tensors(double scale) {
  std::vector<at::Tensor> tensors;
  for (const int64_t size : {1, 3, 0, 1023, 1024, 1025, 5000}) {
    for (const int64_t shift : {0, 1}) {
      tensors.push_back((torch::randn({size + shift}) * scale).to(kGpu).narrow(0, shift, size));
    }
  }
  tensors.push_back((torch::randn({4, 3, 5, 7}) * scale).to(kGpu).contiguous(at::MemoryFormat::ChannelsLast));
  while (tensors.size() < 130) tensors.push_back((torch::randn({7}) * scale).to(kGpu));
  return tensors;
}

std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.clone());
  return copies;
}

void check_equal(const std::vector<at::Tensor>& tensors, const std::vector<at::Tensor>& expected, bool has_same_bits) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    CAPTURE(i, tensors[i].sizes());
    CHECK(torch::allclose(tensors[i], expected[i], 1e-6, 1e-6));
    if (has_same_bits) CHECK(torch::equal(tensors[i], expected[i]));
  }
}

/// Three steps, the second with found_inf.
template <typename Kind, typename Fused>
void check_steps(double weight_decay, bool capturable, const Fused& fused) {
  CAPTURE(weight_decay, capturable);
  const double lr = 0.013, beta1 = 0.87, beta2 = 0.993, eps = 1e-7;
  std::vector<at::Tensor> params = random_tensors(1), expected = copies_of(params), exp_avgs, exp_avg_sqs, steps;
  Kind optimizer(
      {.lr = lr, .betas = {beta1, beta2}, .eps = eps, .weight_decay = weight_decay, .capturable = capturable});
  ParamGroup group;
  for (size_t i = 0; i < params.size(); ++i) {
    group.params.push_back({"p" + std::to_string(i), params[i].requires_grad_()});
    exp_avgs.push_back(torch::zeros_like(expected[i]));
    exp_avg_sqs.push_back(torch::zeros_like(expected[i]));
    steps.push_back(torch::zeros({}, kGpu));
  }
  REQUIRE(trainkit::detail::has_list_kernels(params) == trainkit::detail::has_list_kernels({torch::ones({1}, kGpu)}));
  optimizer.add_param_group(std::move(group));
  const at::NoGradGuard no_grad;
  for (const bool is_skipped : {false, true, false}) {
    const std::vector<at::Tensor> gradients = random_tensors(0.1);
    const at::Tensor found_inf = torch::full({}, is_skipped ? 1.0 : 0.0, kGpu);
    for (size_t i = 0; i < params.size(); ++i) {
      params[i].mutable_grad() = gradients[i];
      if (!is_skipped) steps[i].add_(1);
    }
    optimizer.step_unless(found_inf);
    fused(expected, gradients, exp_avgs, exp_avg_sqs, steps, lr, beta1, beta2, weight_decay, eps, found_inf);
    // LibTorch 2.11's compiled Adam rounds gradient + weight_decay * param in one of two ways, by position in memory.
    // The simulated device computes the results of LibTorch's kernels in another way.
    check_equal(params, expected, !has_cuda_sim() && (weight_decay == 0 || std::is_same_v<Kind, AdamW>));
  }
}

}  // namespace

TEST_CASE("Adam and AdamW on a GPU equal LibTorch's fused kernels, AdamW bit by bit", "[optim][gpu]") {
  SKIP_WITHOUT_GPU();
  torch::manual_seed(1);
  const auto adam = [](auto& p, auto& g, auto& m, auto& v, auto& steps, double lr, double beta1, double beta2,
                       double decay, double eps, const at::Tensor& found_inf) {
    at::_fused_adam_(p, g, m, v, {}, steps, lr, beta1, beta2, decay, eps, false, false, {}, found_inf);
  };
  const auto adamw = [](auto& p, auto& g, auto& m, auto& v, auto& steps, double lr, double beta1, double beta2,
                        double decay, double eps, const at::Tensor& found_inf) {
    at::_fused_adamw_(p, g, m, v, {}, steps, lr, beta1, beta2, decay, eps, false, false, {}, found_inf);
  };
  for (const double weight_decay : {0.0, 0.2}) {
    for (const bool capturable : {false, true}) {
      check_steps<Adam>(weight_decay, capturable, adam);
      check_steps<AdamW>(weight_decay, capturable, adamw);
    }
  }
}

TEST_CASE("The norm of gradients on a GPU equals LibTorch's in float64 within rounding, with the same bits every time",
          "[optim][gpu]") {
  SKIP_WITHOUT_GPU();
  torch::manual_seed(2);
  if (!trainkit::detail::has_list_kernels({torch::ones({1}, kGpu)})) TRAINKIT_SKIP("no kernels for this GPU");
  std::vector<at::Tensor> tensors = random_tensors(3), exact;
  for (const at::Tensor& tensor : tensors) exact.push_back(tensor.cpu().to(at::kDouble).flatten());
  const double expected = torch::cat(exact).norm().item<double>();
  const at::Tensor norm = trainkit::detail::norm_by_kernel(tensors);
  CHECK(norm.item<double>() == Approx(expected).epsilon(1e-6));
  for (int repeat = 0; repeat < 3; ++repeat) CHECK(torch::equal(trainkit::detail::norm_by_kernel(tensors), norm));
  std::vector<at::Tensor> shifted;  // the same values, one value after a multiple of 16 bytes
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor memory = torch::empty({tensor.numel() + 1}, kGpu);
    shifted.push_back(memory.narrow(0, 1, tensor.numel()).copy_(tensor.flatten()));
  }
  const std::vector<at::Tensor> aligned = copies_of(shifted);
  CHECK(torch::equal(trainkit::detail::norm_by_kernel(shifted), trainkit::detail::norm_by_kernel(aligned)));
  for (const double value : {static_cast<double>(INFINITY), static_cast<double>(NAN)}) {
    tensors[8][1022] = value;
    const auto found = trainkit::detail::norm_by_kernel(tensors).item<double>();
    CHECK((std::isnan(value) ? std::isnan(found) : std::isinf(found)));
  }
}

TEST_CASE("copy_together on a GPU copies tensors of any dtype, or none if the condition is 0", "[optim][gpu]") {
  SKIP_WITHOUT_GPU();
  torch::manual_seed(4);
  std::vector<at::Tensor> from = random_tensors(1);
  from.push_back(torch::tensor(7, at::kLong).to(kGpu));
  from.push_back(torch::randint(2, {33}, at::kBool).to(kGpu));
  from.push_back(torch::randn({5, 5}));  // not on the GPU
  std::vector<at::Tensor> to, before;
  for (const at::Tensor& tensor : from) before.push_back(torch::zeros_like(tensor));
  to = copies_of(before);
  trainkit::detail::copy_together(to, from, torch::zeros({}, kGpu));
  for (size_t i = 0; i < to.size(); ++i) CHECK(torch::equal(to[i], before[i]));
  trainkit::detail::copy_together(to, from, torch::ones({}, kGpu));
  for (size_t i = 0; i < to.size(); ++i) CHECK(torch::equal(to[i], from[i]));
  trainkit::detail::copy_together(to, before);
  for (size_t i = 0; i < to.size(); ++i) CHECK(torch::equal(to[i], before[i]));
}

TEST_CASE("copy_together on a GPU refuses tensors of different sizes", "[optim][gpu]") {
  SKIP_WITHOUT_GPU();
  const at::Tensor large = torch::ones({9}, kGpu), small = torch::zeros({5}, kGpu);
  CHECK_THROWS_AS(trainkit::detail::copy_together({small}, {large}), c10::Error);
  CHECK_THROWS_AS(trainkit::detail::copy_together({large}, {small}, torch::ones({}, kGpu)), c10::Error);
  CHECK(torch::equal(large, torch::ones({9}, kGpu)));
}

TEST_CASE("Autograd notices what the kernels of lists change", "[optim][gpu]") {
  SKIP_WITHOUT_GPU();
  if (!trainkit::detail::has_list_kernels({torch::ones({1}, kGpu)})) TRAINKIT_SKIP("no kernels for this GPU");
  const at::Tensor x = torch::ones({4}, kGpu).requires_grad_(), half = torch::full({}, 0.5, kGpu);
  const auto is_refused = [&](const auto& change) {
    at::Tensor saved = torch::ones({4}, kGpu);
    const at::Tensor y = x * saved;
    change(saved);
    CHECK_THROWS_WITH(y.sum().backward(), Catch::Contains("modified by an inplace operation"));
  };
  is_refused([&](const at::Tensor& saved) { trainkit::detail::scale_by_kernel({saved}, half); });
  is_refused([&](const at::Tensor& saved) { trainkit::detail::scale_by_kernel({saved}, half, 1.0); });
  is_refused(
      [&](const at::Tensor& saved) { trainkit::detail::unscale_by_kernel({saved}, torch::zeros({}, kGpu), half); });
  is_refused([&](const at::Tensor& saved) { trainkit::detail::copy_together({saved}, {torch::ones({4}, kGpu)}); });
}

TEST_CASE("cast_together on a GPU rounds as LibTorch does", "[optim][gpu]") {
  SKIP_WITHOUT_GPU();
  torch::manual_seed(3);
  std::vector<at::Tensor> tensors = random_tensors(1e3);
  for (at::Tensor& tensor : tensors) tensor = tensor.contiguous();
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const auto cast = trainkit::detail::cast_together(tensors, type);
    REQUIRE(cast.size() == tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) CHECK(torch::equal(cast[i], tensors[i].to(type)));
  }
}

TEST_CASE("SparseAdam on a GPU equals that of the CPU, and the device decides to skip a step", "[optim][gpu]") {
  SKIP_WITHOUT_GPU();
  torch::manual_seed(4);
  const at::Tensor init = torch::randn({9, 5});
  std::vector<at::Tensor> tables = {init.clone().requires_grad_(), init.to(kGpu).requires_grad_()};
  std::vector<SparseAdam> optimizers;
  for (const at::Tensor& table : tables) {
    optimizers.emplace_back(SparseAdamOptions{.lr = 0.1, .betas = {0.8, 0.95}});
    optimizers.back().add_param_group({.params = {{"table", table}}});
  }
  for (const bool is_skipped : {false, true, false}) {
    // Coalesced: the simulated device cannot sort rows.
    const at::Tensor rows = torch::tensor({{1, 4, 8}}), values = torch::randn({3, 5});
    const at::Tensor before = tables[1].detach().clone();
    for (size_t i = 0; i < 2; ++i) {
      const at::Device device = tables[i].device();
      tables[i].mutable_grad() =
          at::_sparse_coo_tensor_unsafe(rows.to(device), values.to(device), init.sizes(),
                                        values.options().device(device).layout(at::kSparse), /*is_coalesced=*/true);
      optimizers[i].step_unless(torch::full({}, is_skipped ? 1.0 : 0.0, device));
    }
    CHECK(tables[1].cpu().allclose(tables[0], 1e-5, 1e-6));
    CHECK(tables[1].equal(before) == is_skipped);
  }
  CHECK(optimizers[1].step_count().item<double>() == 2);
}
