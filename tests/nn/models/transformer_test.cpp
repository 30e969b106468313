#include "trainkit/nn/transformer.h"

#include <set>

#include "test_util.h"
#include "trainkit/amp/autocast.h"
#include "trainkit/core/error.h"

using namespace trainkit;

namespace {

TransformerConfig small_config() {
  return {.vocab_size = 11, .block_size = 8, .n_layers = 2, .n_heads = 2, .hidden_dim = 16};
}

Transformer small_model(const TransformerConfig& config = small_config()) {
  torch::manual_seed(3);
  Transformer model(config);
  model->eval();
  return model;
}

at::Tensor ids(int64_t rows, int64_t length) { return torch::randint(0, 11, {rows, length}, at::kLong); }

}  // namespace

TEST_CASE("A position attends to itself and earlier ones, and to none after it", "[nn][transformer]") {
  Transformer model = small_model();
  const at::Tensor x = ids(2, 8);
  const at::Tensor before = model->forward(x);
  CHECK(before.sizes() == at::IntArrayRef({2, 8, 11}));
  for (int64_t changed = 0; changed < 8; ++changed) {
    at::Tensor other = x.clone();
    other.select(1, changed).add_(1).remainder_(11);
    const at::Tensor after = model->forward(other);
    if (changed > 0) CHECK(torch::allclose(after.narrow(1, 0, changed), before.narrow(1, 0, changed), 0, 1e-6));
    CHECK_FALSE(torch::allclose(after.select(1, changed), before.select(1, changed), 0, 1e-6));
    CHECK_FALSE(torch::allclose(after.select(1, 7), before.select(1, 7), 0, 1e-7));
  }
}

TEST_CASE("Packed documents have the logits and gradients of each document alone", "[nn][transformer]") {
  const std::vector<int64_t> lengths = {5, 1, 40, 16, 2, 36};  // 100 tokens in one row, with fused blocks and without
  for (const bool fused : {true, false}) {
    for (const bool bf16 : {false, true}) {
      CAPTURE(fused, bf16);
      torch::manual_seed(6);
      Transformer model(
          TransformerConfig{.vocab_size = 11, .block_size = 100, .n_layers = 2, .n_heads = 2, .hidden_dim = 32});
      model->set_fused_blocks(fused);
      model->eval();
      const at::Tensor x = ids(1, 100);
      std::vector<at::Tensor> positions;
      for (const int64_t length : lengths) positions.push_back(torch::arange(length));
      const auto forward = [&](const at::Tensor& tokens, const at::Tensor& documents) {
        const AutocastGuard autocast(at::kCPU, at::kBFloat16, bf16);
        return model->forward(tokens, documents).to(at::kFloat);
      };
      const auto gradients = [&](const at::Tensor& logits) {
        model->zero_grad();
        logits.pow(2).sum().backward();
        std::vector<at::Tensor> all;
        for (const at::Tensor& parameter : model->parameters()) all.push_back(parameter.grad().clone());
        return all;
      };
      const at::Tensor packed = forward(x, torch::cat(positions).unsqueeze(0));
      std::vector<at::Tensor> alone;
      for (int64_t begin = 0; const int64_t length : lengths) {
        alone.push_back(forward(x.slice(1, begin, begin + length), {}));
        begin += length;
      }
      // In bfloat16 a sum in another order may round to the next value of 8 bits.
      const double scale = packed.abs().max().item<double>(), tolerance = bf16 ? scale / 64 : 1e-5;
      CHECK((packed - torch::cat(alone, 1)).abs().max().item<double>() < tolerance);
      CHECK((packed - forward(x, {})).abs().max().item<double>() > 10 * tolerance / (bf16 ? 10 : 1));
      const auto together = gradients(packed), apart = gradients(torch::cat(alone, 1));
      for (size_t i = 0; i < together.size(); ++i) {
        const double worst = apart[i].abs().max().item<double>();
        CHECK((together[i] - apart[i]).abs().max().item<double>() <= (bf16 ? worst / 32 : 1e-4 * worst + 1e-6));
      }
    }
  }
}

TEST_CASE("Packed documents have the same bits with gradient checkpointing, and their positions are checked",
          "[nn][transformer]") {
  Transformer model = small_model();
  const at::Tensor x = ids(2, 8), documents = torch::tensor({{0, 1, 2, 0, 1, 0, 1, 2}, {0, 0, 1, 2, 3, 4, 5, 6}});
  const auto gradient = [&] {
    model->zero_grad();
    model->forward(x, documents).pow(2).sum().backward();
    return model->parameters()[0].grad().clone();
  };
  for (const bool fused : {true, false}) {
    model->set_fused_blocks(fused);
    model->set_gradient_checkpointing(false);
    const at::Tensor plain = gradient();
    model->set_gradient_checkpointing(true);
    CHECK(gradient().equal(plain));
  }
  CHECK_THROWS_AS(model->forward(x, documents.slice(1, 0, 7)), c10::ValueError);
  CHECK_THROWS_AS(model->forward(x, documents.to(at::kInt)), c10::ValueError);
  CHECK_THROWS_AS(model->forward(x, documents + 8), c10::Error);  // outside the position embedding
}

TEST_CASE("Parameters have nanoGPT's names and shapes", "[nn][transformer]") {
  TransformerConfig config = small_config();
  config.n_layers = 1;
  config.bias = true;
  config.tied_head = false;
  std::map<std::string, std::vector<int64_t>> found;
  for (const auto& item : Transformer(config)->named_parameters()) found[item.key()] = item.value().sizes().vec();
  const std::map<std::string, std::vector<int64_t>> expected = {
      {"transformer.wte.weight", {11, 16}},
      {"transformer.wpe.weight", {8, 16}},
      {"transformer.h.0.ln_1.weight", {16}},
      {"transformer.h.0.ln_1.bias", {16}},
      {"transformer.h.0.attn.c_attn.weight", {48, 16}},
      {"transformer.h.0.attn.c_attn.bias", {48}},
      {"transformer.h.0.attn.c_proj.weight", {16, 16}},
      {"transformer.h.0.attn.c_proj.bias", {16}},
      {"transformer.h.0.ln_2.weight", {16}},
      {"transformer.h.0.ln_2.bias", {16}},
      {"transformer.h.0.mlp.c_fc.weight", {64, 16}},
      {"transformer.h.0.mlp.c_fc.bias", {64}},
      {"transformer.h.0.mlp.c_proj.weight", {16, 64}},
      {"transformer.h.0.mlp.c_proj.bias", {16}},
      {"transformer.ln_f.weight", {16}},
      {"transformer.ln_f.bias", {16}},
      {"lm_head.weight", {11, 16}},
  };
  CHECK(found == expected);

  config.bias = false;
  config.tied_head = true;
  Transformer lean(config);
  int64_t elements = 0;
  for (const auto& item : lean->named_parameters()) {
    CHECK_FALSE(item.key().ends_with(".bias"));
    CHECK(item.key() != "lm_head.weight");
    elements += item.value().numel();
  }
  CHECK(lean->num_parameters() == elements);
}

TEST_CASE("Weights are initialised as in nanoGPT, with smaller projections into the residual stream",
          "[nn][transformer]") {
  torch::manual_seed(1);
  Transformer model(
      TransformerConfig{.vocab_size = 500, .block_size = 64, .n_layers = 8, .hidden_dim = 128, .bias = true});
  for (const auto& item : model->named_parameters()) {
    INFO(item.key());
    const double mean = item.value().mean().item<double>();
    if (item.key().ends_with(".bias")) {
      CHECK(item.value().abs().max().item<double>() == 0);
    } else if (item.value().dim() == 1) {
      CHECK((item.value() == 1).all().item<bool>());
    } else {
      const double expected = item.key().ends_with("c_proj.weight") ? 0.02 / 4 : 0.02;  // sqrt(2 * 8) = 4
      CHECK(item.value().std().item<double>() == Approx(expected).epsilon(0.03));
      CHECK(std::abs(mean) < expected / 20);
    }
  }
}

TEST_CASE("The default number of heads is 8 or the largest smaller number that divides the width",
          "[nn][transformer]") {
  CHECK(default_n_heads(512) == 8);
  CHECK(default_n_heads(100) == 5);
  CHECK(default_n_heads(6) == 6);
  CHECK(default_n_heads(13) == 1);
  CHECK(default_n_heads(21) == 7);
  CHECK(Transformer(TransformerConfig{.vocab_size = 5, .n_layers = 1, .hidden_dim = 12})->config().n_heads == 6);
}

TEST_CASE("An invalid configuration is refused with all errors in one message", "[nn][transformer]") {
  const absl::Status status =
      validate({.vocab_size = 0, .block_size = -1, .n_layers = 0, .n_heads = 3, .hidden_dim = 16, .dropout = 1.0});
  CHECK(exit_code(status) == ExitCode::kUsage);
  for (const char* text : {"vocab_size must be >= 1, got 0", "block_size must be >= 1, got -1", "n_layers",
                           "n_heads must be a divisor of", "dropout must be in [0, 1), got 1"}) {
    CHECK(std::string(status.message()).find(text) != std::string::npos);
  }
  CHECK(validate(small_config()).ok());
  CHECK_THROWS_AS(Transformer(TransformerConfig{.vocab_size = 5, .n_heads = 3, .hidden_dim = 16}), c10::ValueError);
}

TEST_CASE("A sequence longer than the block, or not of shape (B, T), is an error", "[nn][transformer]") {
  Transformer model = small_model();
  CHECK_THROWS_AS(model->forward(ids(1, 9)), c10::ValueError);
  CHECK_THROWS_AS(model->forward(ids(1, 8).flatten()), c10::ValueError);
  CHECK_THROWS_AS(model->forward(torch::empty({1, 0}, at::kLong)), c10::ValueError);
}

TEST_CASE("The loss is the mean over the targets that are not ignored", "[nn][transformer]") {
  Transformer model = small_model();
  const at::Tensor logits = model->forward(ids(2, 4));
  at::Tensor targets = ids(2, 4);
  targets[1] = kIgnoreIndex;
  const at::Tensor expected = -torch::log_softmax(logits[0], -1).gather(1, targets[0].unsqueeze(1)).mean();
  CHECK(torch::allclose(language_model_loss(logits, targets), expected, 1e-5, 1e-6));
}

TEST_CASE("Dropout applies in training and never in evaluation", "[nn][transformer]") {
  TransformerConfig config = small_config();
  config.dropout = 0.3;
  Transformer model = small_model(config);
  const at::Tensor x = ids(2, 8);
  CHECK(torch::equal(model->forward(x), model->forward(x)));
  model->train();
  CHECK_FALSE(torch::equal(model->forward(x), model->forward(x)));
}

TEST_CASE("The model overfits one batch", "[nn][transformer]") {
  Transformer model = small_model();
  model->train();
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  torch::manual_seed(5);
  const at::Tensor x = ids(2, 8), y = ids(2, 8);
  const double first = language_model_loss(model->forward(x), y).item<double>();
  CHECK(first == Approx(std::log(11.0)).epsilon(0.1));
  for (int step = 0; step < 100; ++step) {
    optimizer.zero_grad();
    language_model_loss(model->forward(x), y).backward();
    optimizer.step();
  }
  CHECK(language_model_loss(model->forward(x), y).item<double>() < 0.05);
}

TEST_CASE("Generation depends only on the seed and leaves the model's mode unchanged", "[nn][transformer]") {
  Transformer model = small_model();
  model->train();
  const GenerateOptions options{.max_tokens = 30, .temperature = 2.0, .top_k = 0, .seed = 5};
  const auto text = generate(model, {1, 2}, options);
  CHECK(text.size() == 30);
  CHECK(model->is_training());
  CHECK(generate(model, {1, 2}, options) == text);
  CHECK(generate(model, {1, 2}, {.max_tokens = 30, .temperature = 2.0, .top_k = 0, .seed = 6}) != text);
  CHECK(std::set<int64_t>(text.begin(), text.end()).size() > 3);
  CHECK(*std::max_element(text.begin(), text.end()) < 11);
}

TEST_CASE("A model that continues from a cache gives the logits of the whole sequence", "[nn][transformer]") {
  for (const bool bias : {false, true}) {
    Transformer model = small_model();
    if (bias)
      model = Transformer(TransformerConfig{.vocab_size = 11,
                                            .block_size = 8,
                                            .n_layers = 2,
                                            .n_heads = 2,
                                            .hidden_dim = 16,
                                            .bias = true,
                                            .tied_head = false});
    for (const at::Tensor& parameter : model->parameters()) {  // much larger than the small initial weights
      torch::NoGradGuard no_grad;
      parameter.normal_(0, 0.5);
    }
    const at::Tensor ids = torch::randint(11, {3, 8}, torch::kLong);
    const at::Tensor whole = model->forward(ids);
    for (const std::vector<int64_t>& parts :
         std::vector<std::vector<int64_t>>{{1, 1, 1, 1, 1, 1, 1, 1}, {8}, {5, 3}, {1, 4, 2, 1}}) {
      KeyValueCache cache;
      std::vector<at::Tensor> logits;
      for (const int64_t part : parts) logits.push_back(model->forward(ids.narrow(1, cache.length, part), cache));
      CHECK(cache.length == 8);
      CHECK_FALSE(logits.back().requires_grad());
      CHECK(at::allclose(torch::cat(logits, 1), whole, 1e-5, 1e-5));
    }
  }
}

TEST_CASE("A full cache accepts no further position, nor another number of sequences", "[nn][transformer]") {
  Transformer model = small_model();
  KeyValueCache cache;
  model->forward(torch::zeros({2, 7}, torch::kLong), cache);
  CHECK_THROWS_AS(model->forward(torch::zeros({2, 2}, torch::kLong), cache), c10::ValueError);
  CHECK_THROWS_AS(model->forward(torch::zeros({1, 1}, torch::kLong), cache), c10::ValueError);
  model->forward(torch::zeros({2, 1}, torch::kLong), cache);
  CHECK(cache.length == 8);
}

TEST_CASE("Temperature 0 and top_k 1 both take the most probable token after the tokens in the window",
          "[nn][transformer]") {
  Transformer model = small_model();  // of 8 positions
  for (const auto& [slide, forgotten] : {std::pair{0, 4}, std::pair{1, 1}, std::pair{3, 3}, std::pair{8, 8}}) {
    INFO("slide " << slide);
    for (std::vector<int64_t> text : {std::vector<int64_t>{3}, std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}}) {
      const auto greedy = generate(model, text, {.max_tokens = 25, .temperature = 0, .slide = slide});
      CHECK(generate(model, text, {.max_tokens = 25, .temperature = 1, .top_k = 1, .slide = slide}) == greedy);
      int64_t seen = std::min<int64_t>(static_cast<int64_t>(text.size()), 8);
      for (const int64_t token : greedy) {
        const std::vector<int64_t> window(text.end() - seen, text.end());
        REQUIRE(model->forward(torch::tensor(window).unsqueeze(0))[0][-1].argmax().item<int64_t>() == token);
        text.push_back(token);
        if (++seen > 8) seen -= forgotten;
      }
    }
  }
}

TEST_CASE("Frequencies of generated tokens follow the model's probabilities", "[nn][transformer]") {
  Transformer model = small_model();
  const at::Tensor probabilities =
      (model->forward(torch::tensor({{4}}, at::kLong))[0][0] / 0.5).softmax(0).to(at::kDouble);
  std::vector<double> counts(11);
  constexpr int kDraws = 400;
  for (uint64_t seed = 0; seed < kDraws; ++seed) {
    counts[generate(model, {4}, {.max_tokens = 1, .temperature = 0.5, .top_k = 0, .seed = seed})[0]] += 1;
  }
  double chi_squared = 0;
  for (int64_t i = 0; i < 11; ++i) {
    const double expected = kDraws * probabilities[i].item<double>();
    chi_squared += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  CHECK(chi_squared < 29.6);  // 10 degrees of freedom: exceeded once in a thousand cases, and the seeds are fixed
}

TEST_CASE("Generation refuses an empty prompt, ids outside the vocabulary and invalid options", "[nn][transformer]") {
  Transformer model = small_model();
  CHECK_THROWS_AS(generate(model, {}), c10::ValueError);
  CHECK_THROWS_AS(generate(model, {11}), c10::IndexError);
  CHECK_THROWS_AS(generate(model, {-1}), c10::IndexError);
  CHECK_THROWS_AS(generate(model, {1}, {.max_tokens = -1}), c10::ValueError);
  CHECK_THROWS_AS(generate(model, {1}, {.temperature = -0.1}), c10::ValueError);
  CHECK_THROWS_AS(generate(model, {1}, {.top_k = -1}), c10::ValueError);
  CHECK_THROWS_AS(generate(model, {1}, {.slide = -1}), c10::ValueError);
  CHECK_THROWS_AS(generate(model, {1}, {.slide = 9}), c10::ValueError);
  CHECK(generate(model, {1}, {.max_tokens = 0}).empty());
}
