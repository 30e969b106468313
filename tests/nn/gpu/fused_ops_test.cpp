// The GPU operations on the CPU that replaces a GPU: gradients, dtypes and conditions.
#include "nn/gpu/fused_ops.h"

#include "core/device/gpu_operations.h"
#include "memory/memory_recorder.h"
#include "nn/gpu/fused_ops_checks.h"

using namespace trainkit;
using namespace trainkit::test;

TEST_CASE("residual_layer_norm and its gradients equal LibTorch's in float64 within rounding", "[nn][fused_ops]") {
  torch::manual_seed(1);
  const trainkit::detail::GpuOperations gpu(true);
  for (const Types& types : kTypes) {
    for (const auto& sizes :
         std::vector<std::vector<int64_t>>{{1, 1}, {2, 3, 17}, {50, 16}, {600, 24}, {4, 768}, {0, 8}}) {
      for (const bool has_branch : {false, true}) {
        check_residual_layer_norm(at::kCPU, sizes, types, has_branch, /*has_bias=*/sizes.back() != 16);
      }
    }
  }
}

TEST_CASE("bias_gelu and its gradients equal LibTorch's in float64 within rounding", "[nn][fused_ops]") {
  torch::manual_seed(2);
  const trainkit::detail::GpuOperations gpu(true);
  for (const Types& types : kTypes) {
    for (const auto& sizes : std::vector<std::vector<int64_t>>{{1, 1}, {2, 3, 17}, {600, 24}, {0, 8}}) {
      for (const bool by_tanh : {false, true}) check_bias_gelu(at::kCPU, sizes, types, by_tanh);
    }
  }
}

TEST_CASE("cross_entropy for a GPU and its gradient equal LibTorch's in float64 within rounding", "[nn][fused_ops]") {
  torch::manual_seed(3);
  const trainkit::detail::GpuOperations gpu(true);
  for (const Types& types : kTypes) {
    for (const auto& [rows, classes] :
         std::vector<std::pair<int64_t, int64_t>>{{0, 3}, {1, 1}, {5, 2}, {64, 10}, {7, 17}, {16, 3001}}) {
      for (const double spread : {0.1, 5.0, 60.0}) check_cross_entropy(at::kCPU, rows, classes, types, spread);
    }
  }
}

TEST_CASE("linear_cross_entropy for a GPU and its gradients equal separate operations in float64 within rounding",
          "[nn][fused_ops]") {
  torch::manual_seed(9);
  const trainkit::detail::GpuOperations gpu(true);
  for (const Types& types : kTypes) {
    for (const auto& [rows, classes] :
         std::vector<std::pair<int64_t, int64_t>>{{1, 1024}, {70, 1025}, {2048, 1100}, {2500, 1031}}) {
      check_linear_cross_entropy(at::kCPU, rows, classes, types);
    }
  }
  for (const bool wants_hidden : {false, true}) {
    check_linear_cross_entropy(at::kCPU, 70, 1025, kTypes[1], wants_hidden, !wants_hidden);
  }
  check_linear_cross_entropy(at::kCPU, 70, 1025, kTypes[0], false, false);
}

TEST_CASE("linear_cross_entropy for a GPU of ignored targets is NaN with gradients of zeros", "[nn][fused_ops]") {
  const trainkit::detail::GpuOperations gpu(true);
  const at::Tensor hidden = torch::randn({4, 8}).requires_grad_(), weight = torch::randn({1024, 8}).requires_grad_();
  const at::Tensor loss = linear_cross_entropy(hidden, weight, torch::full({4}, -100, at::kLong));
  CHECK(loss.isnan().item<bool>());
  for (const at::Tensor& gradient : torch::autograd::grad({loss}, {hidden, weight}))
    CHECK(gradient.eq(0).all().item<bool>());
}

TEST_CASE("linear_cross_entropy for a GPU refuses inputs of different dtypes without autocast", "[nn][fused_ops]") {
  const trainkit::detail::GpuOperations gpu(true);
  const at::Tensor hidden = torch::randn({4, 8}), weight = torch::randn({1024, 8}).to(at::kBFloat16);
  CHECK_THROWS_AS(linear_cross_entropy(hidden, weight, torch::zeros({4}, at::kLong)), c10::Error);
}

TEST_CASE("linear_cross_entropy for a GPU keeps the logits of 2048 rows, whatever their number", "[nn][fused_ops]") {
  const trainkit::detail::GpuOperations gpu(true);
  const auto peak = [](int64_t rows) {
    const at::Tensor hidden = torch::randn({rows, 8}).requires_grad_(),
                     weight = torch::randn({4001, 8}).requires_grad_();
    MemoryRecorder recorder;
    linear_cross_entropy(hidden, weight, torch::randint(4001, {rows})).backward();
    return recorder.peak().total();
  };
  constexpr int64_t kLogits = 2048 * 4032 * 4;  // the next multiple of 64 classes
  const int64_t few = peak(16), many = peak(6000);
  CHECK(few >= kLogits);
  CHECK(many < kLogits + 1024 * 1024);
}

TEST_CASE("cross_entropy for a GPU treats ignored rows, NaN and infinity as LibTorch does", "[nn][fused_ops]") {
  torch::manual_seed(4);
  const trainkit::detail::GpuOperations gpu(true);
  check_odd_logits(at::kCPU);
  CHECK_THROWS_AS(cross_entropy(torch::randn({2, 3}), torch::tensor({0, 3})), c10::IndexError);
}

TEST_CASE("A block of GPU operations equals the block of separate ones, with dropout and under autocast",
          "[nn][fused_ops]") {
  const trainkit::detail::GpuOperations gpu(true);
  torch::manual_seed(5);
  const at::Tensor ids = torch::randint(37, {3, 16});
  const auto forward = [&](auto& model) { return model->forward(ids); };
  for (const Types& types : {kTypes[0], kTypes[1]}) {
    for (const bool bias : {false, true}) {
      for (const double dropout : {0.0, 0.2}) {
        CAPTURE(bias, dropout);
        check_blocks(small_transformer(bias, dropout), at::kCPU, types, forward);
      }
    }
    for (const std::string activation : {"gelu_new", "gelu", "relu"}) {
      CAPTURE(activation);
      check_blocks(small_gpt2(activation), at::kCPU, types, forward);  // it has its own dropout
    }
  }
  GPT2Model adapted = small_gpt2("gelu_new");
  REQUIRE(apply_lora(*adapted).ok());
  check_blocks(adapted, at::kCPU, kTypes[0], forward);
}

TEST_CASE("embedding for a GPU and its gradient equal LibTorch's", "[nn][fused_ops]") {
  const trainkit::detail::GpuOperations gpu(true);
  torch::manual_seed(10);
  check_embedding(at::kCPU, {3, 70}, 48, 20);
}

TEST_CASE("A block in two nodes has the bits of its operations one by one", "[nn][fused_ops]") {
  const trainkit::detail::GpuOperations gpu(true);
  torch::manual_seed(7);
  check_fused_gpu_blocks(at::kCPU);
}

TEST_CASE("The GPU operations give the same gradients while the graph is retained, and no second derivative",
          "[nn][fused_ops]") {
  const trainkit::detail::GpuOperations gpu(true);
  torch::manual_seed(6);
  const at::Tensor x = torch::randn({5, 8}).requires_grad_(), weight = torch::randn({8}).requires_grad_();
  const at::Tensor target = torch::randint(8, {5});
  const auto results = [&] {
    const auto norm = trainkit::detail::residual_layer_norm(x, x * 2, {weight, {}, 1e-5});
    return std::vector<at::Tensor>{norm.sum.sum(), norm.normed.square().sum(),
                                   trainkit::detail::bias_gelu(x, weight, true).sum(),
                                   cross_entropy(x * weight, target)};
  };
  const auto kept = results();
  for (size_t k = 0; k < kept.size(); ++k) {
    CAPTURE(k);
    const auto once = torch::autograd::grad({kept[k]}, {x}, {}, /*retain_graph=*/true)[0];
    CHECK(torch::autograd::grad({kept[k]}, {x}, {}, /*retain_graph=*/true)[0].equal(once));
  }
  const auto again = results();
  for (const size_t k : {1, 2, 3}) {
    CHECK_THROWS_AS(torch::autograd::grad({again[k]}, {x}, {}, true, /*create_graph=*/true), c10::NotImplementedError);
  }
}

TEST_CASE("A Transformer for a GPU without fused blocks has a second derivative", "[nn][fused_ops]") {
  const trainkit::detail::GpuOperations gpu(true);
  torch::manual_seed(11);
  Transformer model(
      TransformerConfig{.vocab_size = 11, .block_size = 8, .n_layers = 1, .n_heads = 1, .hidden_dim = 16});
  model->set_fused_blocks(false);
  const at::Tensor logits = model->forward(torch::randint(11, {2, 8}));
  const auto norms = model->named_parameters();
  const at::Tensor& scale = norms["transformer.ln_f.weight"];
  const at::Tensor first = torch::autograd::grad({logits.square().sum()}, {scale}, {}, true, /*create_graph=*/true)[0];
  CHECK(torch::autograd::grad({first.sum()}, {scale})[0].abs().sum().item<double>() > 0);
}

TEST_CASE("A residual stream that only passes a norm gets its gradient, and an unused one gets none",
          "[nn][fused_ops]") {
  const trainkit::detail::GpuOperations gpu(true);
  const at::Tensor x = torch::randn({3, 4}).requires_grad_(), branch = torch::randn({3, 4}).requires_grad_();
  const at::Tensor weight = torch::randn({4}).requires_grad_();
  const auto norm = trainkit::detail::residual_layer_norm(x, branch, {weight, {}, 1e-5});
  const auto of_sum =
      torch::autograd::grad({norm.sum.sum()}, {x, branch, weight}, {}, true, false, /*allow_unused=*/true);
  CHECK(of_sum[0].equal(torch::ones({3, 4})));
  CHECK(of_sum[1].equal(torch::ones({3, 4})));
  CHECK_FALSE(of_sum[2].defined());
  const auto of_norm = torch::autograd::grad({norm.normed.square().sum()}, {x, branch, weight});
  CHECK(of_norm[0].equal(of_norm[1]));
  CHECK(of_norm[2].defined());
}

TEST_CASE("LibTorch computes inputs that the GPU operations do not support", "[nn][fused_ops]") {
  torch::manual_seed(7);
  const at::Tensor x = torch::randn({3, 4}), weight = torch::randn({4});
  const auto is_separate = [&](const at::Tensor& stream, const at::Tensor& of, const at::Tensor& branch) {
    const auto norm = trainkit::detail::residual_layer_norm(stream, branch, {of, {}, 1e-5});
    const at::Tensor sum = branch.defined() ? stream + branch : stream;
    return norm.sum.equal(sum) && norm.normed.equal(at::layer_norm(sum, {4}, of, {}, 1e-5));
  };
  CHECK(is_separate(x, weight, x));  // a plain CPU tensor
  CHECK(trainkit::detail::bias_gelu(x, weight, false).equal(at::gelu(x + weight)));
  const trainkit::detail::GpuOperations gpu(true);
  CHECK(is_separate(x.to(at::kDouble), weight.to(at::kDouble), {}));
  CHECK(is_separate(torch::randn({4, 3}).t(), weight, x));
  CHECK(is_separate(x, weight, torch::randn({4})));    // broadcast
  CHECK(is_separate(x, weight, x.to(at::kBFloat16)));  // without autocast
  CHECK(trainkit::detail::bias_gelu(x, {}, true).equal(at::gelu(x, "tanh")));
  const at::Tensor logits = torch::randn({6, 4}).t(), target = torch::randint(6, {4});
  CHECK(at::allclose(cross_entropy(logits, target), at::cross_entropy_loss(logits, target)));
  CHECK(at::allclose(cross_entropy(logits.to(at::kDouble), target),
                     at::cross_entropy_loss(logits.to(at::kDouble), target)));
}

TEST_CASE(
    "Without our kernels norm, GELU and cross-entropy on a GPU are LibTorch's, with the kernels' values and gradients",
    "[nn][fused_ops]") {
  torch::manual_seed(8);
  for (const Types& types : kTypes) {
    CAPTURE(types.stream, types.product);
    if (types.product == at::kHalf)
      continue;  // LibTorch's norm on the CPU does not accept float32 weights with
                 // float16
    const AutocastGuard autocast(at::kCPU, types.product, types.uses_autocast());
    const at::Tensor x = random_values({12, 16}, types.stream, at::kCPU);
    const at::Tensor branch = random_values({12, 16}, types.product, at::kCPU);
    const at::Tensor weight = random_values({16}, types.stream, at::kCPU);
    const at::Tensor bias = random_values({16}, types.stream, at::kCPU);
    const at::Tensor target = torch::randint(16, {12});
    const auto results = [&](bool has_kernels) {
      const trainkit::detail::GpuOperations gpu(true, has_kernels);
      CHECK(trainkit::detail::runs_gpu_operations(x) == has_kernels);
      const auto norm = trainkit::detail::residual_layer_norm(x, branch, {weight, bias, 1e-5});
      const at::Tensor inner = trainkit::detail::bias_gelu(norm.normed.to(types.product), bias, true);
      const at::Tensor loss = cross_entropy(inner, target);
      for (const at::Tensor& each : {norm.normed, inner, loss}) {
        CHECK((each.grad_fn()->name().find("Function") != std::string::npos) == has_kernels);
      }
      CHECK(loss.grad_fn()->name().find("CrossEntropyBackward") == std::string::npos);  // the CPU's cross-entropy
      std::vector<at::Tensor> all = torch::autograd::grad({loss + norm.sum.square().mean()}, {x, branch, weight, bias});
      for (const at::Tensor& value : {norm.sum, norm.normed, inner, loss}) all.push_back(value.detach());
      return all;
    };
    const auto kernels = results(true), separate = results(false);
    for (size_t k = 0; k < kernels.size(); ++k) {
      CAPTURE(k);
      CHECK(separate[k].sizes() == kernels[k].sizes());
      CHECK(worst_relative(separate[k], kernels[k]) < 3 * types.tolerance());
    }
  }
}

TEST_CASE("Without our kernels a model's blocks on a GPU use the separate operations", "[nn][fused_ops]") {
  torch::manual_seed(9);
  const at::Tensor ids = torch::randint(37, {3, 16});
  const auto check = [&](auto model) {
    const auto forward = [&](auto& of) { return of->forward(ids); };
    const trainkit::detail::GpuOperations gpu(true, /*has_kernels=*/false);
    const auto fallback = results_of(model, forward);
    model->set_fused_blocks(false);
    const auto separate = results_of(model, forward);
    REQUIRE(fallback.size() == separate.size());
    for (size_t k = 0; k < fallback.size(); ++k) CHECK(fallback[k].equal(separate[k]));
  };
  check(small_transformer(true, 0.0));
  check(small_gpt2("gelu_new"));
}

TEST_CASE("embedding_lookup is found without its namespace, next to LibTorch's embedding", "[nn][fused_ops]") {
  using namespace trainkit;
  const at::Tensor weight = torch::randn({5, 3}), ids = torch::tensor({4, 0}, at::kLong);
  CHECK(embedding_lookup(ids, weight).equal(at::embedding(weight, ids)));
}
