// The kernels of nn/gpu/fused_ops.h on a GPU.
#ifdef TRAINKIT_WITH_CUDA
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#endif

#include "core/device/gpu_kernel_support.h"
#include "core/device/gpu_operations.h"
#include "cuda_sim/cuda_sim_control.h"
#include "nn/gpu/fused_ops_checks.h"

using namespace trainkit;
using namespace trainkit::test;

#ifdef TRAINKIT_WITH_CUDA
#define SKIP_WITHOUT_GPU()                                                         \
  if (!torch::cuda::is_available()) TRAINKIT_SKIP("no GPU that LibTorch can use"); \
  if (!trainkit::has_gpu_kernels(at::Device(at::kCUDA, 0))) TRAINKIT_SKIP("no kernels for this GPU")
#else
#define SKIP_WITHOUT_GPU() TRAINKIT_SKIP("this build is without CUDA")
#endif

namespace {

/// The simulated device takes a minute for a GPU's instant: the largest tensors run with TRAINKIT_TEST_FULL only.
bool is_for_gpus(int64_t values) { return has_cuda_sim() && values > 300'000 && !is_full(); }

}  // namespace

TEST_CASE("residual_layer_norm and its gradients on a GPU equal LibTorch's in float64 within rounding", "[nn][gpu]") {
  SKIP_WITHOUT_GPU();
  torch::manual_seed(1);
  for (const Types& types : kTypes) {
    // Threads of one warp and of several, sums with and without shared memory, vectors and single values, no rows at
    // all.
    for (const auto& sizes : std::vector<std::vector<int64_t>>{{1, 1},
                                                               {2, 3, 17},
                                                               {600, 24},
                                                               {4, 768},
                                                               {9000, 384},
                                                               {77, 200},
                                                               {300, 1024},
                                                               {9000, 64},
                                                               {33, 5000},
                                                               {20, 8192},
                                                               {5, 40'000},
                                                               {3, 9001},
                                                               {0, 8}}) {
      if (is_for_gpus(c10::multiply_integers(sizes))) continue;
      for (const bool has_branch : {false, true}) {
        for (const bool has_bias : {false, true}) {
          check_residual_layer_norm(at::kCUDA, sizes, types, has_branch, has_bias);
        }
      }
    }
    check_residual_layer_norm(at::kCUDA, {70, 64}, types, true, true, /*is_shifted=*/true);
  }
}

TEST_CASE("bias_gelu and its gradients on a GPU equal LibTorch's in float64 within rounding", "[nn][gpu]") {
  SKIP_WITHOUT_GPU();
  torch::manual_seed(2);
  for (const Types& types : kTypes) {
    for (const auto& sizes : std::vector<std::vector<int64_t>>{
             {1, 1}, {2, 3, 17}, {600, 24}, {20'000, 96}, {70, 3072}, {3, 40'001}, {0, 8}}) {
      if (is_for_gpus(c10::multiply_integers(sizes))) continue;
      for (const bool by_tanh : {false, true}) check_bias_gelu(at::kCUDA, sizes, types, by_tanh);
    }
    check_bias_gelu(at::kCUDA, {70, 64}, types, true, /*is_shifted=*/true);
  }
}

TEST_CASE("cross_entropy and its gradient on a GPU equal LibTorch's in float64 within rounding", "[nn][gpu]") {
  SKIP_WITHOUT_GPU();
  torch::manual_seed(3);
  for (const Types& types : kTypes) {
    for (const auto& [rows, classes] : std::vector<std::pair<int64_t, int64_t>>{
             {0, 3}, {1, 1}, {5, 2}, {3000, 10}, {7, 17}, {64, 4096}, {40, 50257}}) {
      if (is_for_gpus(rows * classes)) continue;
      for (const double spread : {0.1, 5.0, 60.0}) check_cross_entropy(at::kCUDA, rows, classes, types, spread);
    }
    check_cross_entropy(at::kCUDA, 64, 1000, types, 5.0, /*is_shifted=*/true);
  }
}

TEST_CASE("linear_cross_entropy and its gradients on a GPU equal separate operations in float64 within rounding",
          "[nn][gpu]") {
  SKIP_WITHOUT_GPU();
  torch::manual_seed(9);
  for (const Types& types : kTypes) {
    for (const auto& [rows, classes] :
         std::vector<std::pair<int64_t, int64_t>>{{1, 1024}, {70, 1031}, {5000, 1025}, {2100, 50257}}) {
      if (is_for_gpus(rows * classes)) continue;
      check_linear_cross_entropy(at::kCUDA, rows, classes, types);
    }
  }
}

TEST_CASE("cross_entropy on a GPU treats ignored rows, NaN and infinity as LibTorch does", "[nn][gpu]") {
  SKIP_WITHOUT_GPU();
  torch::manual_seed(4);
  check_odd_logits(at::kCUDA);
}

TEST_CASE("embedding and its gradient on a GPU equal LibTorch's", "[nn][gpu]") {
  SKIP_WITHOUT_GPU();
  torch::manual_seed(10);
  for (const int64_t width : {1, 48, 300}) {
    check_embedding(at::kCUDA, {1}, width, 50);
    check_embedding(at::kCUDA, {3, 7}, width, 1);
    check_embedding(at::kCUDA, {is_for_gpus(4096 * width) ? 500 : 4096}, width, 50);
  }
  const at::Tensor weight = random_values({50, 8}, at::kFloat, at::kCUDA);
  const auto node = [&](const at::Tensor& ids, const at::Tensor& table) {
    return trainkit::embedding_lookup(ids.to(at::kCUDA), table).grad_fn()->name();
  };
  CHECK(node(torch::randint(50, {4097}), weight).find("EmbeddingBackward") != std::string::npos);
  CHECK(node(torch::randint(50, {4}), weight.to(at::kHalf)).find("EmbeddingBackward") != std::string::npos);
}

TEST_CASE("A block with our operations on a GPU equals the block of separate ones", "[nn][gpu]") {
  SKIP_WITHOUT_GPU();
  torch::manual_seed(5);
  const at::Tensor ids = torch::randint(37, {3, 16}).to(at::kCUDA);
  const auto forward = [&](auto& model) { return model->forward(ids); };
  for (const Types& types : kTypes) {
    for (const bool bias : {false, true}) check_blocks(small_transformer(bias, 0.2), at::kCUDA, types, forward);
    for (const std::string activation : {"gelu_new", "gelu", "relu"}) {
      check_blocks(small_gpt2(activation), at::kCUDA, types, forward);
    }
  }
}

TEST_CASE("A block in two nodes on a GPU has the bits of its operations one by one", "[nn][gpu]") {
  SKIP_WITHOUT_GPU();
  torch::manual_seed(7);
  check_fused_gpu_blocks(at::kCUDA);
}

TEST_CASE("Our operations on a GPU have the same bits every time", "[nn][gpu]") {
  SKIP_WITHOUT_GPU();
  torch::manual_seed(6);
  const int64_t rows = is_for_gpus(20'000 * 96) ? 1000 : 20'000;
  const at::Tensor x = random_values({rows, 96}, at::kBFloat16, at::kCUDA);
  const at::Tensor weight = random_values({96}, at::kBFloat16, at::kCUDA);
  const at::Tensor target = torch::randint(96, {rows}).to(at::kCUDA);
  const auto once = [&] {
    const auto norm = trainkit::detail::residual_layer_norm(x, x, {weight, weight, 1e-5});
    const at::Tensor loss = cross_entropy(norm.sum + trainkit::detail::bias_gelu(norm.normed, weight, true), target);
    auto all = torch::autograd::grad({loss}, {x, weight});
    all.push_back(loss.detach());
    return all;
  };
  const auto first = once();
  for (int repeat = 0; repeat < 5; ++repeat) {
    const auto again = once();
    for (size_t k = 0; k < first.size(); ++k) CHECK(again[k].equal(first[k]));
  }
}

TEST_CASE("LibTorch's operations give the same values and gradients on a GPU without our kernels", "[nn][gpu]") {
  SKIP_WITHOUT_GPU();
  torch::manual_seed(8);
  const at::Tensor x = random_values({64, 96}, at::kFloat, at::kCUDA),
                   weight = random_values({96}, at::kFloat, at::kCUDA);
  const at::Tensor target = torch::randint(96, {64}).to(at::kCUDA);
  const auto results = [&](bool has_kernels) {
    const trainkit::detail::GpuOperations gpu(false, has_kernels);
    CHECK(trainkit::detail::runs_gpu_operations(x) == has_kernels);
    const auto norm = trainkit::detail::residual_layer_norm(x, x, {weight, weight, 1e-5});
    const at::Tensor loss = cross_entropy(trainkit::detail::bias_gelu(norm.normed, weight, false) + norm.sum, target);
    auto all = torch::autograd::grad({loss}, {x, weight});
    all.push_back(loss.detach());
    return all;
  };
  const auto kernels = results(true), separate = results(false);
  for (size_t k = 0; k < kernels.size(); ++k) CHECK(worst_relative(separate[k], kernels[k]) < 2e-5);
}

#ifdef TRAINKIT_WITH_CUDA
TEST_CASE("Our operations and their gradients can be captured in a CUDA graph, which computes with new values",
          "[nn][gpu]") {
  SKIP_WITHOUT_GPU();
  torch::manual_seed(7);
  at::Tensor x = random_values({64, 96}, at::kFloat, at::kCUDA);
  const at::Tensor weight = random_values({96}, at::kFloat, at::kCUDA);
  const at::Tensor target = torch::randint(96, {64}).to(at::kCUDA);
  const auto gradients = [&] {
    const auto norm = trainkit::detail::residual_layer_norm(x, x, {weight, weight, 1e-5});
    return torch::autograd::grad(
        {cross_entropy(trainkit::detail::bias_gelu(norm.normed, weight, false) + norm.sum, target)}, {x, weight});
  };
  const c10::cuda::CUDAStreamGuard on_side(c10::cuda::getStreamFromPool());
  gradients();  // loads the kernels
  torch::cuda::synchronize();
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  const auto captured = gradients();
  graph.capture_end();
  {
    const at::NoGradGuard no_grad;
    x.copy_(torch::randn({64, 96}));
  }
  graph.replay();
  const auto expected = gradients();
  for (size_t k = 0; k < expected.size(); ++k) CHECK(captured[k].equal(expected[k]));
}
#endif
