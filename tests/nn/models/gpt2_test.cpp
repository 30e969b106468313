#include "trainkit/nn/gpt2.h"

#include <filesystem>
#include <fstream>

#include "test_util.h"
#include "trainkit/io/safetensors.h"
#include "trainkit/io/weight_file.h"
#include "trainkit/nn/lora.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

GPT2Config small() {
  return {.vocab_size = 30,
          .n_positions = 12,
          .n_embd = 16,
          .n_layer = 2,
          .n_head = 2,
          .embd_pdrop = 0,
          .attn_pdrop = 0,
          .resid_pdrop = 0};
}

void write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

NamedTensors parameters(const GPT2Model& model) {
  NamedTensors tensors;
  for (const auto& item : model->named_parameters()) tensors.emplace_back(item.key(), item.value().detach());
  return tensors;
}

/// `text` with the first `from` replaced by `to`.
std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

std::string read(const std::string& path) { return Fs::posix().read_file(path, 1 << 20).value(); }

}  // namespace

TEST_CASE("A padded row gives the hidden states of the row without padding", "[nn][gpt2]") {
  GPT2Model model(small());
  model->eval();
  const torch::NoGradGuard no_grad;
  const at::Tensor ids = torch::randint(0, 30, {1, 5}), other = torch::randint(0, 30, {1, 9});
  const at::Tensor alone = model->forward(ids);
  const at::Tensor junk = torch::randint(0, 30, {1, 4});
  const at::Tensor right = torch::cat({torch::cat({ids, junk}, 1), other}), left = torch::cat({junk, ids}, 1);
  const at::Tensor right_mask = torch::ones({2, 9}, torch::kLong), left_mask = torch::ones({1, 9}, torch::kBool);
  right_mask[0].slice(0, 5, 9).zero_();
  left_mask[0].slice(0, 0, 4).fill_(false);
  const at::Tensor padded = model->forward(right, right_mask);
  CHECK(torch::allclose(padded[0].slice(0, 0, 5), alone[0], 1e-5, 1e-6));
  CHECK(torch::allclose(padded[1], model->forward(other)[0], 1e-5, 1e-6));
  const at::Tensor counted = model->forward(left, left_mask, position_ids_of(left_mask));
  CHECK(torch::allclose(counted[0].slice(0, 4, 9), alone[0], 1e-5, 1e-6));
  CHECK(counted.isfinite().all().item<bool>());
  // The values of padding do not change valid positions.
  at::Tensor changed = right.clone();
  changed[0].slice(0, 5, 9).fill_(3);
  CHECK(torch::equal(model->forward(changed, right_mask)[0].slice(0, 0, 5), padded[0].slice(0, 0, 5)));
}

TEST_CASE("last_token_hidden finds the last token for padding on either side", "[nn][gpt2]") {
  const at::Tensor hidden = torch::arange(24.).view({3, 4, 2});
  const at::Tensor mask = torch::tensor({{1, 1, 0, 0}, {0, 0, 1, 1}, {0, 0, 0, 0}});
  CHECK(torch::equal(last_token_hidden(hidden, mask), torch::stack({hidden[0][1], hidden[1][3], hidden[2][0]})));
  CHECK_THROWS_AS(last_token_hidden(hidden, mask.t()), c10::ValueError);
}

TEST_CASE("A row of padding only has finite gradients", "[nn][gpt2]") {
  GPT2Model model(small());
  const at::Tensor mask = torch::tensor({{0, 0, 0}, {0, 1, 1}});
  model->forward(torch::ones({2, 3}, torch::kLong), mask).sum().backward();
  for (const auto& item : model->named_parameters()) {
    INFO(item.key());
    CHECK(item.value().grad().isfinite().all().item<bool>());
  }
}

TEST_CASE("A new GPT-2 has the initial values that its paper specifies", "[nn][gpt2]") {
  torch::manual_seed(1);
  GPT2Config config = small();
  config.n_embd = 128;
  config.n_layer = 8;
  GPT2Model model(config);
  for (const auto& item : model->named_parameters()) {
    INFO(item.key());
    const at::Tensor value = item.value().detach();
    if (value.dim() == 2) {
      const double expected = item.key().ends_with("c_proj.weight") ? 0.005 : 0.02;
      CHECK(value.std().item<double>() == Approx(expected).epsilon(0.05));
    } else {
      CHECK(torch::equal(value, item.key().find("ln_") != std::string::npos && item.key().ends_with("weight")
                                    ? torch::ones_like(value)
                                    : torch::zeros_like(value)));
    }
  }
}

TEST_CASE("GPT-2 applies dropout in training mode only", "[nn][gpt2]") {
  GPT2Config config = small();
  config.attn_pdrop = config.resid_pdrop = config.embd_pdrop = 0.5;
  GPT2Model model(config);
  const at::Tensor ids = torch::randint(0, 30, {2, 6});
  CHECK_FALSE(torch::equal(model->forward(ids), model->forward(ids)));
  model->eval();
  CHECK(torch::equal(model->forward(ids), model->forward(ids)));
}

TEST_CASE("A GPT-2 with invalid sizes or inputs is refused with all errors", "[nn][gpt2]") {
  GPT2Config config = small();
  config.n_head = 3;
  config.resid_pdrop = 1;
  config.activation_function = "tangens";
  const absl::Status status = validate(config);
  CHECK(exit_code(status) == ExitCode::kUsage);
  CHECK_THAT(std::string(status.message()), Catch::Contains("n_head must be a divisor of n_embd 16, got 3") &&
                                                Catch::Contains("resid_pdrop must be in [0, 1)") &&
                                                Catch::Contains("activation_function must be one of gelu_new,"));
  CHECK_THROWS_AS(GPT2Model(config), c10::ValueError);
  GPT2Model model(small());
  CHECK_THROWS_AS(model->forward(torch::ones({13}, torch::kLong)), c10::ValueError);
  CHECK_THROWS_AS(model->forward(torch::ones({1, 13}, torch::kLong)), c10::ValueError);
  CHECK_THROWS_AS(model->forward(torch::ones({1, 3}, torch::kLong), torch::ones({1, 4})), c10::ValueError);
}

TEST_CASE("A saved GPT-2 is loaded with the same bits", "[nn][gpt2]") {
  TempDir dir;
  GPT2Config config = small();
  config.n_inner = 20;
  config.scale_attn_weights = false;
  GPT2Model model(config);
  REQUIRE(save_gpt2(*model, dir / "m") == absl::OkStatus());
  auto loaded = load_gpt2(dir / "m");
  REQUIRE(loaded.status() == absl::OkStatus());
  CHECK((*loaded)->config().n_inner == 20);
  CHECK_FALSE((*loaded)->config().scale_attn_weights);
  const NamedTensors before = parameters(model), after = parameters(*loaded);
  REQUIRE(before.size() == after.size());
  for (size_t i = 0; i < before.size(); ++i) {
    CHECK(before[i].first == after[i].first);
    CHECK(torch::equal(before[i].second, after[i].second));
  }
}

TEST_CASE("A GPT-2 with an adapter is saved only after merging, and without the adapter", "[nn][gpt2]") {
  TempDir dir;
  GPT2Model model(small());
  model->eval();
  REQUIRE(apply_lora(*model, {.rank = 2}) == absl::OkStatus());
  for (auto& item : model->named_parameters()) {
    if (item.key().ends_with("lora_B.weight")) torch::nn::init::normal_(item.value());
  }
  const absl::Status status = save_gpt2(*model, dir / "m");
  CHECK(absl::IsFailedPrecondition(status));
  CHECK(error_of(status)->field == "h.0.attn.c_attn");
  merge_lora(*model);
  REQUIRE(save_gpt2(*model, dir / "m") == absl::OkStatus());
  const at::Tensor ids = torch::randint(0, 30, {2, 6});
  CHECK(torch::equal(load_gpt2(dir / "m").value()->forward(ids), model->forward(ids)));
}

TEST_CASE("A folder without a valid GPT-2 is refused with the file and the field", "[nn][gpt2]") {
  TempDir dir;
  const std::string folder = dir / "m", config_path = folder + "/config.json";
  REQUIRE(save_gpt2(*GPT2Model(small()), folder) == absl::OkStatus());
  const std::string good = read(config_path);
  const struct {
    const char *from, *to, *says;
  } rows[] = {
      {"{", "", "config.json"},
      {"\"gpt2\"", "\"bert\"", "model_type: is another model (got 'bert', expected gpt2)"},
      {"\"n_embd\": 16", "\"n_embd\": \"16\"", "n_embd: is of the wrong type"},
      {"\"n_embd\": 16", "\"n_embd\": 16.0", "n_embd: is of the wrong type"},
      {"\"n_embd\": 16", "\"n_embd\": 18446744073709551615", "n_embd: is of the wrong type"},
      {"\"n_embd\": 16", "\"n_embd\": 16, \"n_embd\": 16", "n_embd"},
      {"\"n_embd\": 16", "\"n_embd\": 32", "n_embd: does not fit the weights (got '32', expected 16)"},
      {"\"n_layer\": 2", "\"n_layer\": 1000000000", "n_layer: does not fit the weights (got '1000000000', expected 2)"},
      {"\"n_layer\": 2", "\"n_layer\": 1", "n_layer: does not fit the weights (got '1', expected 2)"},
      {"\"n_layer\": 2", "\"n_layer\": -1", "n_layer must be >= 1, got -1"},
      {"\"n_layer\": 2", "\"n_layer\": 3000000000", "n_layer must be <= 2147483647, got 3000000000"},
      {"\"n_inner\": null", "\"n_inner\": 2000000000", "n_inner: does not fit the weights"},
      {"\"vocab_size\": 30", "\"vocab_size\": 2000000000", "vocab_size: does not fit the weights"},
      {"\"n_positions\": 12", "\"n_positions\": 2000000000", "n_positions: does not fit the weights"},
      {"\"n_head\": 2", "\"n_head\": 0", "n_head must be a divisor of n_embd 16, got 0"},
      {"\"n_head\": 2", "\"n_head\": 2, \"add_cross_attention\": true", "add_cross_attention: is not supported"},
      {"\"gelu_new\"", "\"mish\"", "activation_function must be one of"},
      {"1e-05", "0", "layer_norm_epsilon must be in (0, 1), got 0"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.from, row.to);
    write(config_path, replaced(good, row.from, row.to));
    const absl::Status status = load_gpt2(folder).status();
    CHECK(exit_code(status) == ExitCode::kWeights);
    CHECK_THAT(error_line(status), Catch::Contains("config.json") && Catch::Contains(row.says));
  }
  write(config_path, good);
  REQUIRE(load_gpt2(folder).ok());

  NamedTensors tensors = parameters(load_gpt2(folder).value());
  std::erase_if(tensors, [](const auto& named) { return named.first == "h.1.mlp.c_proj.bias"; });
  tensors.emplace_back("h.1.extra", torch::ones({1}));
  REQUIRE(save_safetensors(Fs::posix(), folder + "/model.safetensors", tensors).ok());
  CHECK_THAT(error_line(load_gpt2(folder).status()),
             Catch::Contains("1 missing (h.1.mlp.c_proj.bias)") && Catch::Contains("1 unexpected (h.1.extra)"));
  std::filesystem::remove(folder + "/model.safetensors");
  CHECK_THAT(error_line(load_gpt2(folder).status()),
             Catch::Contains("has no weights") && Catch::Contains("model.safetensors or pytorch_model.bin"));
  write(folder + "/model.safetensors.index.json", "{}");
  CHECK_THAT(error_of(load_gpt2(folder).status())->hint, Catch::Contains("sharded weights are not supported"));
  CHECK(exit_code(load_gpt2(dir / "none").status()) == ExitCode::kWeights);
}

TEST_CASE("Heads and the masks of old files are ignored when a GPT-2 is loaded", "[nn][gpt2]") {
  TempDir dir;
  GPT2Model model(small());
  REQUIRE(save_gpt2(*model, dir / "m") == absl::OkStatus());
  std::filesystem::remove(dir / "m/model.safetensors");
  NamedTensors tensors;
  for (const auto& [name, tensor] : parameters(model)) tensors.emplace_back("transformer." + name, tensor);
  tensors.emplace_back("transformer.h.0.attn.bias", torch::ones({1, 1, 12, 12}, torch::kByte));
  tensors.emplace_back("transformer.h.0.attn.masked_bias", torch::tensor(-1e4));
  tensors.emplace_back("lm_head.weight", parameters(model)[0].second);
  tensors.emplace_back("score.weight", torch::ones({3, 16}));
  REQUIRE(save_torch_file(Fs::posix(), dir / "m/pytorch_model.bin", tensors).ok());
  const auto loaded = load_gpt2(dir / "m");
  REQUIRE(loaded.status() == absl::OkStatus());
  for (size_t i = 0; i < parameters(model).size(); ++i)
    CHECK(torch::equal(parameters(model)[i].second, parameters(*loaded)[i].second));
}
