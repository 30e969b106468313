#include <ATen/autocast_mode.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include "test_util.h"
#include "trainkit/amp/autocast.h"
#include "trainkit/nn/activation_checkpoint.h"
#include "trainkit/nn/transformer.h"

using namespace trainkit;

namespace {

/// Counts the bytes of live CPU tensors.
class Meter : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t change, size_t, size_t, c10::Device) override {
    live += change;
    peak = std::max(peak, live);
  }
  void reportOutOfMemory(int64_t, size_t, size_t, c10::Device) override {}
  bool memoryProfilingEnabled() const override { return true; }
  int64_t live = 0;
  int64_t peak = 0;
};

struct Run {
  at::Tensor loss;
  std::vector<at::Tensor> gradients;
  at::Tensor next_random;
  int64_t peak_bytes = 0;
};

Run run(bool checkpointing, TransformerConfig config, bool autocast = false, int64_t rows = 3, int64_t segments = 1) {
  torch::manual_seed(9);
  Transformer model(config);
  const at::Tensor x = torch::randint(0, config.vocab_size, {rows, config.block_size}, at::kLong);
  const at::Tensor y = torch::randint(0, config.vocab_size, {rows, config.block_size}, at::kLong);
  model->set_gradient_checkpointing(checkpointing);
  model->set_checkpoint_segments(segments);
  Run result;
  auto meter = std::make_shared<Meter>();
  {
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
    at::autocast::set_autocast_enabled(at::kCPU, autocast);
    result.loss = language_model_loss(model->forward(x), y);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    result.loss.backward();
  }
  result.peak_bytes = meter->peak;
  for (const at::Tensor& parameter : model->parameters()) result.gradients.push_back(parameter.grad());
  result.next_random = torch::rand({4});
  return result;
}

void check_equal(const Run& a, const Run& b) {
  CHECK(torch::equal(a.loss, b.loss));
  CHECK(torch::equal(a.next_random, b.next_random));
  REQUIRE(a.gradients.size() == b.gradients.size());
  for (size_t i = 0; i < a.gradients.size(); ++i) {
    INFO("parameter " << i);
    REQUIRE(a.gradients[i].defined());
    CHECK(a.gradients[i].abs().max().item<double>() > 0);
    CHECK(torch::equal(a.gradients[i], b.gradients[i]));
  }
}

const TransformerConfig kConfig{.vocab_size = 31, .block_size = 16, .n_layers = 3, .n_heads = 2, .hidden_dim = 32};

}  // namespace

TEST_CASE("Gradients with checkpointing equal those without, bit for bit", "[nn][checkpoint]") {
  for (const double dropout : {0.0, 0.2}) {
    for (const bool bias : {false, true}) {
      for (const bool tied : {false, true}) {
        CAPTURE(dropout, bias, tied);
        TransformerConfig config = kConfig;
        config.dropout = dropout;
        config.bias = bias;
        config.tied_head = tied;
        check_equal(run(true, config), run(false, config));
      }
    }
  }
}

TEST_CASE("Recomputation uses the autocast state of the first run", "[nn][checkpoint]") {
  const Run plain = run(false, kConfig, /*autocast=*/true);
  check_equal(run(true, kConfig, /*autocast=*/true), plain);
  CHECK_FALSE(torch::equal(plain.gradients[0], run(false, kConfig).gradients[0]));  // autocast had an effect
}

TEST_CASE("Checkpointing keeps less memory", "[nn][checkpoint]") {
  const TransformerConfig config{.vocab_size = 31, .block_size = 64, .n_layers = 8, .n_heads = 2, .hidden_dim = 64};
  const int64_t plain = run(false, config, false, 8).peak_bytes;
  const int64_t checkpointed = run(true, config, false, 8).peak_bytes;
  WARN("peak bytes of a step: " << checkpointed << " with checkpointing, " << plain << " without");
  CHECK(checkpointed < plain / 2);
}

TEST_CASE("Gradients with any number of segments equal those without, and more segments take less memory",
          "[nn][checkpoint]") {
  TransformerConfig config{.vocab_size = 31, .block_size = 64, .n_layers = 7, .n_heads = 2, .hidden_dim = 64};
  for (const double dropout : {0.0, 0.2}) {
    config.dropout = dropout;
    const Run plain = run(false, config, false, 8);
    int64_t last = plain.peak_bytes;
    for (const int64_t segments : {2, 3, 7}) {
      CAPTURE(dropout, segments);
      const Run divided = run(false, config, false, 8, segments);
      check_equal(divided, plain);
      CHECK(divided.peak_bytes < last);
      last = divided.peak_bytes;
    }
    CHECK(last < plain.peak_bytes / 2);
  }
  Transformer model(config);
  CHECK_THROWS_AS(model->set_checkpoint_segments(0), c10::ValueError);
  CHECK_THROWS_AS(model->set_checkpoint_segments(8), c10::ValueError);
}

TEST_CASE("checkpoint_sequential computes each layer twice, except those of the last segment", "[nn][checkpoint]") {
  std::vector<int> calls(5);
  std::vector<CheckpointedLayer> layers;
  const at::Tensor weight = torch::rand({3}).requires_grad_(), x = torch::rand({3});
  for (int& count : calls) {
    layers.push_back({[&count, weight](const at::Tensor& t) { return ++count, (t * weight).tanh(); }, {weight}});
  }
  checkpoint_sequential(layers, 2, x).sum().backward();
  CHECK(calls == std::vector<int>{2, 2, 1, 1, 1});
}

TEST_CASE("torch::autograd::grad works through a checkpoint, and checkpoints nest", "[nn][checkpoint]") {
  const at::Tensor weight = torch::rand({3}).requires_grad_();
  const at::Tensor x = torch::rand({3}).requires_grad_();
  const auto inner = [&](const at::Tensor& t) { return (t * weight).tanh(); };
  const auto outer = [&](const at::Tensor& t) { return checkpoint(inner, t, {weight}) * weight; };
  const auto expected = torch::autograd::grad({(inner(x) * weight).sum()}, {x, weight});
  const auto found = torch::autograd::grad({checkpoint(outer, x, {weight}).sum()}, {x, weight});
  CHECK(torch::equal(found[0], expected[0]));
  CHECK(torch::equal(found[1], expected[1]));
  CHECK_FALSE(weight.grad().defined());
}

TEST_CASE("An input without gradient still gives the parameters their gradients", "[nn][checkpoint]") {
  const at::Tensor weight = torch::rand({3}).requires_grad_();
  const at::Tensor frozen = torch::rand({3});
  const at::Tensor x = torch::rand({3});
  const auto function = [&](const at::Tensor& t) { return t * weight * frozen; };
  checkpoint(function, x, {weight, frozen}).sum().backward();
  CHECK(torch::allclose(weight.grad(), x * frozen));
}

TEST_CASE("Without grad mode the function is called once, directly", "[nn][checkpoint]") {
  int calls = 0;
  const at::Tensor weight = torch::rand({3}).requires_grad_();
  const auto function = [&](const at::Tensor& t) { return ++calls, t * weight; };
  {
    const torch::NoGradGuard no_grad;
    CHECK_FALSE(checkpoint(function, torch::rand({3}), {weight}).requires_grad());
  }
  CHECK(calls == 1);
  checkpoint(function, torch::rand({3}), {weight}).sum().backward();
  CHECK(calls == 3);
}

TEST_CASE("Double backward through a checkpoint is a clear error", "[nn][checkpoint]") {
  const at::Tensor x = torch::rand({3}).requires_grad_();
  const at::Tensor y = checkpoint([](const at::Tensor& t) { return t * t * t; }, x, {}).sum();
  CHECK_THROWS_WITH(torch::autograd::grad({y}, {x}, {}, true, true),
                    Catch::Contains("double backward is not supported"));
}

TEST_CASE("A failed recomputation restores the random number generator", "[nn][checkpoint]") {
  int calls = 0;
  const at::Tensor x = torch::rand({3}).requires_grad_();
  const auto function = [&](const at::Tensor& t) {
    if (++calls == 2) throw std::runtime_error("second run");
    return t * torch::rand({3});
  };
  const at::Tensor y = checkpoint(function, x, {}).sum();
  torch::manual_seed(4);
  const at::Tensor expected = torch::rand({3});
  torch::manual_seed(4);
  CHECK_THROWS_WITH(y.backward(), Catch::Contains("second run"));
  CHECK(torch::equal(torch::rand({3}), expected));
}

TEST_CASE("A parameter that is listed several times gets its gradient once, and undefined tensors are skipped",
          "[nn][checkpoint]") {
  const at::Tensor weight = torch::rand({3}).requires_grad_(), x = torch::rand({3});
  const auto function = [&](const at::Tensor& t) { return (t * weight).tanh() * weight; };
  const at::Tensor expected = torch::autograd::grad({function(x).sum()}, {weight})[0];
  checkpoint(function, x, {weight, at::Tensor(), weight}).sum().backward();
  CHECK(torch::equal(weight.grad(), expected));
}

TEST_CASE("A layer that occurs several times gets the gradients of the plain calls", "[nn][checkpoint]") {
  torch::manual_seed(4);
  const at::Tensor weight = torch::rand({3}).requires_grad_(), x = torch::rand({3});
  const CheckpointedLayer layer = {[weight](const at::Tensor& t) { return (t * weight).tanh(); }, {weight}};
  const std::vector<CheckpointedLayer> layers(6, layer);
  checkpoint_sequential(layers, 1, x).sum().backward();
  const at::Tensor expected = weight.grad().clone();
  for (const int64_t segments : {2, 3, 6}) {
    CAPTURE(segments);
    weight.mutable_grad().reset();
    checkpoint_sequential(layers, segments, x).sum().backward();
    CHECK(torch::allclose(weight.grad(), expected, 1e-5));
  }
}

TEST_CASE("Under autocast the gradient of a tied layer is that of the plain calls up to the rounding of its sum",
          "[nn][checkpoint]") {
  torch::manual_seed(4);
  const at::Tensor weight = torch::randn({4, 4}).requires_grad_(), x = torch::randn({3, 4});
  const auto layer = [&](const at::Tensor& t) { return at::linear(t, weight); };
  const auto gradient = [&](bool checkpointed) {
    weight.mutable_grad().reset();
    at::Tensor loss;
    {
      const AutocastGuard autocast(at::kCPU, at::kBFloat16);
      const at::Tensor middle = checkpointed ? checkpoint(layer, x, {weight}) : layer(x);
      loss = layer(middle.tanh()).to(at::kFloat).square().mean();
    }
    loss.backward();
    return weight.grad().clone();
  };
  const at::Tensor plain = gradient(false);
  CHECK(gradient(true).allclose(plain, 0.02, 0.01));
  CHECK(gradient(true).equal(gradient(true)));
}
