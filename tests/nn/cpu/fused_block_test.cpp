// Fused blocks (one autograd node each), compared with the same blocks of separate operations.
#include <cmath>
#include <functional>
#include <limits>

#include "nn/cpu/attention_kernel.h"
#include "nn/cpu/block_kernels.h"
#include "test_util.h"
#include "trainkit/amp/autocast.h"
#include "trainkit/nn/gpt2.h"
#include "trainkit/nn/lora.h"
#include "trainkit/nn/transformer.h"

using namespace trainkit;

namespace {

double worst_relative_error(const at::Tensor& a, const at::Tensor& b) {
  return ((a.to(at::kDouble) - b).abs().max() / b.abs().max().clamp_min(1e-30)).item<double>();
}

/// The output, then the gradients of all parameters, for a fixed gradient of the output.
template <typename Model>
std::vector<at::Tensor> results(Model model, const std::function<at::Tensor(Model&)>& forward, bool bf16 = false) {
  model->zero_grad();
  at::Tensor out;
  {
    const AutocastGuard autocast(at::kCPU, at::kBFloat16, bf16);
    out = forward(model);
  }
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(7);
  out.backward(at::randn(out.sizes(), generator, at::kDouble).to(out.scalar_type()));
  std::vector<at::Tensor> all = {out.detach()};
  for (const auto& parameter : model->parameters()) {
    if (parameter.requires_grad()) all.push_back(parameter.grad().clone());
  }
  return all;
}

/// Errors of the fused blocks and of the separate operations, both compared with float64; they must be of similar size.
template <typename Model>
void require_as_exact(Model model, const std::function<at::Tensor(Model&)>& forward, bool bf16 = false) {
  const auto fused = results(model, forward, bf16);
  model->set_fused_blocks(false);
  const auto separate = results(model, forward, bf16);
  model->to(at::kDouble);
  const auto exact = results(model, forward);
  model->to(at::kFloat);
  model->set_fused_blocks(true);
  bool differs = false;
  REQUIRE(fused.size() == separate.size());
  for (size_t k = 0; k < fused.size(); ++k) {
    CAPTURE(k, fused[k].sizes());
    CHECK(fused[k].scalar_type() == separate[k].scalar_type());
    CHECK(worst_relative_error(fused[k], exact[k]) <=
          2 * worst_relative_error(separate[k], exact[k]) + (bf16 ? 2e-3 : 2e-6));
    differs = differs || !fused[k].equal(separate[k]);
  }
  CHECK(differs);  // otherwise the fused block did not run
}

Transformer small_transformer(int64_t width, int64_t heads, int64_t time, bool bias) {
  Transformer model(TransformerConfig{
      .vocab_size = 37, .block_size = time, .n_layers = 2, .n_heads = heads, .hidden_dim = width, .bias = bias});
  const at::NoGradGuard no_grad;
  for (auto& parameter : model->parameters()) parameter.add_(torch::randn_like(parameter) * 0.1);
  return model;
}

GPT2Model gpt2_with(const std::string& activation = "gelu_new") {
  GPT2Model model(GPT2Config{.vocab_size = 37,
                             .n_positions = 40,
                             .n_embd = 32,
                             .n_layer = 2,
                             .n_head = 2,
                             .activation_function = activation,
                             .scale_attn_by_inverse_layer_idx = true});
  model->eval();
  const at::NoGradGuard no_grad;
  for (auto& parameter : model->parameters()) parameter.add_(torch::randn_like(parameter) * 0.1);
  return model;
}

}  // namespace

TEST_CASE("A fused block of the Transformer and its gradients are as exact as separate operations", "[nn][fused]") {
  torch::manual_seed(1);
  struct Shape {
    int64_t batch, time, width, heads;
    bool bias;
  };
  for (const Shape& shape : std::vector<Shape>{{2, 1, 16, 1, false},
                                               {3, 7, 32, 2, true},
                                               {1, 16, 48, 1, false},
                                               {2, 64, 64, 2, true},
                                               {1, 65, 64, 4, false},
                                               {2, 130, 128, 2, true},
                                               {1, 200, 96, 2, false}}) {
    for (const bool bf16 : {false, true}) {
      CAPTURE(shape.batch, shape.time, shape.width, shape.heads, shape.bias, bf16);
      const at::Tensor ids = torch::randint(37, {shape.batch, shape.time});
      require_as_exact<Transformer>(
          small_transformer(shape.width, shape.heads, shape.time, shape.bias),
          [&](Transformer& model) { return model->forward(ids); }, bf16);
    }
  }
}

/// Positions of documents with these lengths, one after the other in each row.
at::Tensor packed_positions(const std::vector<std::vector<int64_t>>& rows) {
  std::vector<at::Tensor> all;
  for (const std::vector<int64_t>& lengths : rows) {
    std::vector<at::Tensor> row;
    for (const int64_t length : lengths) row.push_back(torch::arange(length));
    all.push_back(torch::cat(row));
  }
  return torch::stack(all);
}

TEST_CASE("A fused block with packed documents is as exact as separate operations with a mask", "[nn][fused]") {
  torch::manual_seed(4);
  const std::vector<at::Tensor> positions = {
      packed_positions({{1}}), packed_positions({{5, 2}, {1, 6}, {7}}), packed_positions({{8, 16, 24, 17}, {1, 63, 1}}),
      packed_positions({{64, 64, 72}, {3, 120, 77}, {150, 1, 49}, {33, 33, 33, 33, 33, 35}})};
  for (const at::Tensor& documents : positions) {
    for (const bool bf16 : {false, true}) {
      const int64_t rows = documents.size(0), time = documents.size(1);
      CAPTURE(rows, time, bf16);
      const at::Tensor ids = torch::randint(37, {rows, time});
      require_as_exact<Transformer>(
          small_transformer(64, 2, time, true), [&](Transformer& model) { return model->forward(ids, documents); },
          bf16);
    }
  }
}

TEST_CASE("A row of one document has the bits of a row without documents", "[nn][fused]") {
  torch::manual_seed(5);
  const at::Tensor ids = torch::randint(37, {2, 70}), documents = packed_positions({{70}, {70}});
  for (const bool bf16 : {false, true}) {
    Transformer model = small_transformer(64, 2, 70, true);
    const auto plain = results<Transformer>(
        model, [&](Transformer& m) { return m->forward(ids); }, bf16);
    const auto packed = results<Transformer>(
        model, [&](Transformer& m) { return m->forward(ids, documents); }, bf16);
    CHECK(packed[0].equal(plain[0]));
    for (size_t k = 1; k < plain.size(); ++k) CHECK(torch::allclose(packed[k], plain[k], 1e-5, 1e-6));
  }
}

TEST_CASE("A fused block of GPT-2 is as exact as separate operations, with padding on either side", "[nn][fused]") {
  torch::manual_seed(2);
  const at::Tensor ids = torch::randint(37, {3, 21});
  at::Tensor mask = torch::ones({3, 21}, at::kLong);
  mask[0].slice(0, 13) = 0;
  mask[1].slice(0, 0, 5) = 0;
  for (const std::string activation : {"gelu_new", "gelu"}) {
    for (const bool padded : {false, true}) {
      CAPTURE(activation, padded);
      const at::Tensor seen = padded ? mask : at::Tensor();
      require_as_exact<GPT2Model>(gpt2_with(activation), [&](GPT2Model& model) {
        const at::Tensor hidden = model->forward(ids, seen);
        return padded ? hidden * mask.unsqueeze(2) : hidden;  // values at padding positions do not matter
      });
    }
  }
}

TEST_CASE("Training with fused blocks gives the losses of training with separate operations", "[nn][fused]") {
  constexpr int kSteps = 60;
  const auto losses = [&](bool fused, bool bf16) {
    torch::manual_seed(12);
    Transformer model(
        TransformerConfig{.vocab_size = 37, .block_size = 24, .n_layers = 2, .n_heads = 2, .hidden_dim = 32});
    model->set_fused_blocks(fused);
    std::vector<double> all;
    for (int step = 0; step < kSteps; ++step) {
      const at::Tensor text = (torch::randint(37, {8, 1}) + torch::arange(25) * 5).remainder(37);  // increments of five
      at::Tensor loss;
      {
        const AutocastGuard autocast(at::kCPU, at::kBFloat16, bf16);
        loss = language_model_loss(model->forward(text.narrow(1, 0, 24)), text.narrow(1, 1, 24).contiguous());
      }
      all.push_back(loss.item<double>());
      model->zero_grad();
      loss.backward();
      const at::NoGradGuard no_grad;
      for (auto& parameter : model->parameters()) parameter.sub_(0.3 * parameter.grad());
    }
    return all;
  };
  for (const bool bf16 : {false, true}) {
    const std::vector<double> fused = losses(true, bf16), separate = losses(false, bf16);
    double worst = 0;
    for (int step = 0; step < kSteps; ++step) worst = std::max(worst, std::abs(fused[step] / separate[step] - 1));
    CAPTURE(bf16, worst, fused.front(), fused.back());
    CHECK(fused.back() < 0.5 * fused.front());
    CHECK(fused != separate);  // otherwise the fused block did not run
    CHECK(worst < (bf16 ? 0.02 : 1e-4));
  }
}

TEST_CASE("Configurations that a fused block does not support use separate operations", "[nn][fused]") {
  torch::manual_seed(3);
  const auto is_fused = [](auto model, const auto& forward) {
    const at::Tensor first = forward(model);
    model->set_fused_blocks(false);
    const at::Tensor second = forward(model);
    model->set_fused_blocks(true);
    return !first.equal(second);
  };
  const at::Tensor ids = torch::randint(37, {2, 9});
  const auto forward = [&](auto& model) {
    torch::manual_seed(4);
    return model->forward(ids);
  };
  CHECK(is_fused(small_transformer(32, 2, 9, true), forward));
  CHECK_FALSE(is_fused(small_transformer(24, 3, 9, true), forward));  // heads of 8 values
  CHECK(is_fused(gpt2_with(), forward));
  CHECK_FALSE(is_fused(gpt2_with("relu"), forward));
  GPT2Model training = gpt2_with();
  training->train();
  CHECK_FALSE(is_fused(training, forward));  // GPT-2 has its own dropout
  GPT2Model adapted = gpt2_with();
  REQUIRE(apply_lora(*adapted).ok());
  CHECK_FALSE(is_fused(adapted, forward));
}

TEST_CASE("The kernels of a fused block have the same bits for any number of threads", "[nn][fused]") {
  torch::manual_seed(5);
  const auto work = [rows = torch::randn({330, 192}), other = torch::randn({330, 192}), weight = torch::randn({192})] {
    const trainkit::detail::CausalAttention attention{.n_heads = 4, .scale = 0.25};
    const at::Tensor qkv = rows.view({10, 33, 192});
    const trainkit::detail::Attended attended = trainkit::detail::causal_attention(qkv, {}, attention);
    const trainkit::detail::Normalised norm =
        trainkit::detail::add_layer_norm(rows, other, weight, weight, weight, 1e-5, at::kFloat);
    const trainkit::detail::LayerNormGradients of_norm =
        trainkit::detail::layer_norm_backward(rows, other, norm, weight, true);
    const trainkit::detail::BiasGradients of_bias =
        trainkit::detail::bias_activation_backward(rows, other, weight, trainkit::detail::Activation::kGelu);
    return std::vector<at::Tensor>{
        attended.mixed,
        attended.logsumexp,
        trainkit::detail::causal_attention_backward(attended.mixed, qkv, {}, attended, attention),
        norm.out,
        of_norm.sum,
        of_norm.weight,
        of_norm.bias,
        of_bias.x,
        of_bias.bias,
        trainkit::detail::sum_rows(rows)};
  };
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const auto expected = work();
  at::set_num_threads(3);
  const auto threaded = work();
  at::set_num_threads(threads);
  for (size_t k = 0; k < expected.size(); ++k) {
    CAPTURE(k);
    CHECK(threaded[k].equal(expected[k]));
  }
}

TEST_CASE("Fused blocks have the same bits with gradient checkpointing", "[nn][fused]") {
  torch::manual_seed(5);
  const at::Tensor ids = torch::randint(37, {5, 33});
  Transformer model = small_transformer(64, 4, 40, true);
  const auto forward = [&](Transformer& net) { return net->forward(ids); };
  const auto expected = results<Transformer>(model, forward);
  model->set_gradient_checkpointing(true);
  const auto again = results<Transformer>(model, forward);
  for (size_t k = 0; k < expected.size(); ++k) CHECK(again[k].equal(expected[k]));
}

TEST_CASE("A fused block runs backward while its graph is retained, for the weights that require gradients",
          "[nn][fused]") {
  torch::manual_seed(6);
  const at::Tensor ids = torch::randint(37, {2, 9});
  Transformer model = small_transformer(32, 2, 9, true);
  for (auto& item : model->named_parameters())
    item.value().set_requires_grad(item.key().find("h.1.mlp") != std::string::npos);
  const at::Tensor loss = model->forward(ids).square().mean();
  loss.backward({}, /*retain_graph=*/true);
  std::vector<at::Tensor> once;
  for (const auto& item : model->named_parameters()) {
    CHECK(item.value().grad().defined() == (item.key().find("h.1.mlp") != std::string::npos));
    if (item.value().grad().defined()) once.push_back(item.value().grad().clone());
  }
  REQUIRE(once.size() == 4);
  loss.backward();
  size_t k = 0;
  for (const auto& item : model->named_parameters()) {
    if (item.value().grad().defined()) CHECK(item.value().grad().equal(once[k++] * 2));
  }

  Transformer twice = small_transformer(32, 2, 9, true);
  CHECK_THROWS_AS(torch::autograd::grad({twice->forward(ids).square().mean()}, {twice->parameters()[0]}, {},
                                        /*retain_graph=*/true, /*create_graph=*/true),
                  c10::NotImplementedError);
}

TEST_CASE("A NaN in one sequence reaches the output of that sequence and of no other", "[nn][fused]") {
  torch::manual_seed(8);
  GPT2Model model = gpt2_with();
  {
    const at::NoGradGuard no_grad;
    model->parameters()[0][5].fill_(std::numeric_limits<float>::quiet_NaN());  // the embedding of token 5
  }
  at::Tensor ids = torch::randint(6, 37, {2, 12});
  ids[1][4] = 5;
  const at::Tensor hidden = model->forward(ids);
  CHECK_FALSE(hidden[0].isnan().any().item<bool>());
  CHECK(hidden[1].slice(0, 4).isnan().all().item<bool>());
}
