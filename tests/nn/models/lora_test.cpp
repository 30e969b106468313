#include "trainkit/nn/lora.h"

#include <torch/nn/init.h>
#include <torch/nn/modules/linear.h>

#include <filesystem>
#include <fstream>

#include "test_util.h"
#include "trainkit/io/safetensors.h"
#include "trainkit/io/weight_file.h"
#include "trainkit/nn/gpt2.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

GPT2Model small_model() {
  torch::manual_seed(2);
  return GPT2Model(GPT2Config{.vocab_size = 20,
                              .n_positions = 8,
                              .n_embd = 16,
                              .n_layer = 2,
                              .n_head = 2,
                              .embd_pdrop = 0,
                              .attn_pdrop = 0,
                              .resid_pdrop = 0});
}

void randomise_adapters(GPT2Model& model) {
  for (auto& item : model->named_parameters()) {
    if (item.key().ends_with("lora_B.weight")) torch::nn::init::normal_(item.value());
  }
}

NamedTensors copies(const GPT2Model& model) {
  NamedTensors tensors;
  for (const auto& item : model->named_parameters()) tensors.emplace_back(item.key(), item.value().detach().clone());
  return tensors;
}

bool equal(const NamedTensors& a, const NamedTensors& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.first == y.first && torch::equal(x.second, y.second);
  });
}

const at::Tensor kIds = torch::arange(12).view({2, 6});

}  // namespace

TEST_CASE("A new adapter changes no output and is the only trainable part", "[nn][lora]") {
  GPT2Model model = small_model();
  const at::Tensor before = model->forward(kIds);
  REQUIRE(apply_lora(*model, {.rank = 3, .targets = {"c_attn", "mlp.c_proj"}}) == absl::OkStatus());
  CHECK(torch::equal(model->forward(kIds), before));
  model->forward(kIds).sum().backward();
  int64_t trained = 0, adapters = 0;
  for (const auto& item : model->named_parameters()) {
    INFO(item.key());
    const bool is_adapter = item.key().find(".lora_") != std::string::npos;
    CHECK(item.value().requires_grad() == is_adapter);
    CHECK(item.value().grad().defined() == is_adapter);
    adapters += is_adapter;
    trained += is_adapter ? item.value().numel() : 0;
  }
  CHECK(adapters == 8);
  CHECK(trained == 2 * (3 * (16 + 48) + 3 * (64 + 16)));
}

TEST_CASE("An adapter adds scaling * B A to a layer", "[nn][lora]") {
  torch::manual_seed(3);
  Conv1D conv(4, 6);
  Linear linear(4, 6);
  const at::Tensor x = torch::randn({2, 5, 4});
  for (AdaptableImpl* layer : {static_cast<AdaptableImpl*>(conv.get()), static_cast<AdaptableImpl*>(linear.get())}) {
    layer->add_adapter(2, 0.5);
    const auto adapter = layer->named_parameters();
    torch::nn::init::normal_(adapter["lora_B.weight"]);
    const at::Tensor change = 0.5 * at::mm(adapter["lora_B.weight"], adapter["lora_A.weight"]);
    const at::Tensor weight = layer->weight_is_transposed() ? layer->weight.t() : layer->weight;
    CHECK(torch::allclose(layer->forward(x), torch::linear(x, weight + change, layer->bias), 1e-5, 1e-6));
    CHECK(torch::allclose(layer->forward(x[0][0]), torch::linear(x[0][0], weight + change, layer->bias), 1e-5, 1e-6));
    CHECK(layer->in_features() == 4);
    CHECK(layer->out_features() == 6);
    CHECK_THROWS_WITH(layer->add_adapter(2, 0.5), Catch::Contains("already has an adapter"));
  }
  CHECK_THROWS_AS(Linear(4, 6)->add_adapter(0, 1), c10::ValueError);
  CHECK_THROWS_AS(Linear(4, 6)->add_adapter(1, 1, 1.0), c10::ValueError);
}

TEST_CASE("A new Linear has the parameters of torch's", "[nn][lora]") {
  torch::manual_seed(6);
  Linear ours(40, 30);
  torch::manual_seed(6);
  torch::nn::Linear torchs(40, 30);
  CHECK(torch::equal(ours->weight, torchs->weight));
  CHECK(torch::equal(ours->bias, torchs->bias));
  CHECK(torch::equal(ours->forward(torch::ones({2, 40})), torchs->forward(torch::ones({2, 40}))));
}

TEST_CASE("An adapter applies dropout to its input, in training mode only", "[nn][lora]") {
  Linear layer(50, 1, false);
  layer->add_adapter(1, 1.0, 0.5);
  {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : layer->parameters()) parameter.fill_(1);
    layer->weight.zero_();
  }
  const at::Tensor x = torch::ones({200, 50});
  const at::Tensor out = layer->forward(x).detach();
  CHECK(out.mean().item<double>() == Approx(50).epsilon(0.05));
  CHECK(out.std().item<double>() == Approx(std::sqrt(50.0)).epsilon(0.3));  // each input is 0 or 2
  layer->eval();
  CHECK(torch::equal(layer->forward(x), torch::full({200, 1}, 50.0)));
}

TEST_CASE("Training adapters lowers the loss and leaves every weight unchanged", "[nn][lora]") {
  GPT2Model model = small_model();
  REQUIRE(apply_lora(*model, {.rank = 4, .alpha = 16, .targets = {"c_attn", "c_fc", "c_proj"}}).ok());
  const at::Tensor target = torch::randn({2, 6, 16});
  torch::optim::Adam optimizer(model->parameters(), 0.01);
  NamedTensors before = copies(model);
  double first = 0, last = 0;
  for (int step = 0; step < 60; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = torch::mse_loss(model->forward(kIds), target);
    loss.backward();
    optimizer.step();
    last = loss.item<double>();
    if (step == 0) first = last;
  }
  CHECK(last < 0.7 * first);
  NamedTensors after = copies(model);
  const auto is_adapter = [](const auto& named) { return named.first.find(".lora_") != std::string::npos; };
  CHECK_FALSE(equal(before, after));
  std::erase_if(before, is_adapter);
  std::erase_if(after, is_adapter);
  CHECK(equal(before, after));
}

TEST_CASE("Unmerging restores the original bits", "[nn][lora]") {
  GPT2Model model = small_model();
  REQUIRE(apply_lora(*model, {.rank = 4, .alpha = 3.7, .targets = {"c_attn", "c_fc"}}) == absl::OkStatus());
  randomise_adapters(model);
  const NamedTensors before = copies(model);
  const at::Tensor out = model->forward(kIds);
  for (int round = 0; round < 2; ++round) {
    merge_lora(*model);
    merge_lora(*model);  // merging once is enough
    CHECK_FALSE(equal(copies(model), before));
    CHECK(torch::allclose(model->forward(kIds), out, 1e-4, 1e-5));
    unmerge_lora(*model);
    unmerge_lora(*model);
    CHECK(equal(copies(model), before));
  }
  merge_lora(*model);
  const at::Tensor merged = model->forward(kIds);
  remove_lora(*model);
  CHECK(torch::equal(model->forward(kIds), merged));
  CHECK(copies(model).size() + 8 == before.size());
  unmerge_lora(*model);
  CHECK(torch::equal(model->forward(kIds), merged));
}

TEST_CASE("A target that matches no layer, or an unsupported layer, is reported and nothing is changed", "[nn][lora]") {
  GPT2Model model = small_model();
  const NamedTensors before = copies(model);
  const absl::Status missing = apply_lora(*model, {.targets = {"c_attn", "c_attm"}});
  CHECK(exit_code(missing) == ExitCode::kUsage);
  CHECK_THAT(error_line(missing), Catch::Contains("no layer is called 'c_attm'"));
  CHECK(error_of(missing)->hint == "did you mean 'c_attn'?");
  const absl::Status other = apply_lora(*model, {.targets = {"wte"}});
  CHECK_THAT(error_line(other), Catch::Contains("wte: cannot carry an adapter"));
  CHECK_FALSE(apply_lora(*model, {.targets = {"attn"}}).ok());   // an entire attention module
  CHECK_FALSE(apply_lora(*model, {.targets = {"_attn"}}).ok());  // part of a name
  const absl::Status bad = apply_lora(*model, {.rank = 0, .dropout = 1.0, .targets = {}});
  CHECK_THAT(error_line(bad), Catch::Contains("rank must be in [1, 1048576], got 0") &&
                                  Catch::Contains("dropout must be") &&
                                  Catch::Contains("targets must contain a layer name"));
  CHECK(equal(copies(model), before));
  for (const auto& parameter : model->parameters()) CHECK(parameter.requires_grad());
  REQUIRE(apply_lora(*model).ok());
  CHECK_THROWS_WITH(apply_lora(*model), Catch::Contains("already has an adapter"));
  torch::nn::Sequential plain(torch::nn::Linear(3, 3));
  CHECK_THAT(error_line(apply_lora(*plain, {.targets = {"0"}})),
             Catch::Contains("expected trainkit::Linear or Conv1D"));
}

TEST_CASE("Saved adapters are loaded with the same bits and their configuration", "[nn][lora]") {
  TempDir dir;
  const LoRAConfig config{.rank = 3, .alpha = 2.5, .dropout = 0.25, .targets = {"c_fc"}, .rank_stabilized = true};
  GPT2Model model = small_model(), other = small_model();
  CHECK(absl::IsFailedPrecondition(save_lora(*model, config, dir / "a")));
  REQUIRE(apply_lora(*model, config) == absl::OkStatus());
  randomise_adapters(model);
  REQUIRE(save_lora(*model, config, dir / "new/a") == absl::OkStatus());
  const auto loaded = load_lora(*other, dir / "new/a");
  REQUIRE(loaded.status() == absl::OkStatus());
  CHECK(loaded->rank == 3);
  CHECK(loaded->alpha == 2.5);
  CHECK(loaded->dropout == 0.25);
  CHECK(loaded->targets == config.targets);
  CHECK(loaded->rank_stabilized);
  CHECK(equal(copies(model), copies(other)));
  model->eval();
  other->eval();
  CHECK(torch::equal(model->forward(kIds), other->forward(kIds)));
  // In peft's format before safetensors.
  const NamedTensors tensors = SafetensorsFile::open(dir / "new/a/adapter_model.safetensors")->tensors().value();
  REQUIRE(save_torch_file(Fs::posix(), dir / "new/a/adapter_model.bin", tensors).ok());
  std::filesystem::remove(dir / "new/a/adapter_model.safetensors");
  GPT2Model third = small_model();
  REQUIRE(load_lora(*third, dir / "new/a").status() == absl::OkStatus());
  CHECK(equal(copies(model), copies(third)));
}

TEST_CASE("A folder of adapters that does not match is refused with the file and the field, and nothing is changed",
          "[nn][lora]") {
  TempDir dir;
  const std::string folder = dir / "a", path = folder + "/adapter_config.json";
  const LoRAConfig config{.rank = 3, .targets = {"c_fc"}};
  GPT2Model model = small_model(), other = small_model();
  REQUIRE(apply_lora(*model, config).ok());
  REQUIRE(save_lora(*model, config, folder).ok());
  const std::string good = Fs::posix().read_file(path, 1 << 20).value();
  const NamedTensors before = copies(other);
  const auto refused = [&](const std::string& says) {
    const absl::Status status = load_lora(*other, folder).status();
    CHECK(exit_code(status) == ExitCode::kWeights);
    CHECK_THAT(error_line(status), Catch::Contains(says));
    CHECK(equal(copies(other), before));
    for (const auto& parameter : other->parameters()) CHECK(parameter.requires_grad());
  };
  const struct {
    const char *from, *to, *says;
  } rows[] = {
      {"\"LORA\"", "\"IA3\"", "peft_type: is another kind (got 'IA3', expected LORA)"},
      {"\"none\"", "\"all\"", "bias: is not supported (got 'all', expected none)"},
      {"\"r\": 3", "\"r\": 0", "rank must be in [1, 1048576], got 0"},
      {"\"r\": 3", "\"r\": 1000000", "r: does not fit the adapters (got '1000000', expected 3)"},
      {"\"r\": 3", "\"r\": 2000000000", "rank must be in [1, 1048576], got 2000000000"},
      {"\"r\": 3", "\"r\": 3, \"use_dora\": true", "use_dora: is not supported"},
      {"\"r\": 3", "\"r\": 3, \"rank_pattern\": {\"c_fc\": 5}", "rank_pattern: is not supported"},
      {"\"r\": 3", "\"r\": 3, \"alpha_pattern\": {\"c_fc\": 5}", "alpha_pattern: is not supported"},
      {"\"r\": 3", "\"r\": 3, \"modules_to_save\": [\"wte\"]", "modules_to_save: is not supported"},
      {"\"r\": 3", "\"r\": 3, \"of_next_year\": 7", "of_next_year: is not supported"},
      {"\"init_lora_weights\": true", "\"init_lora_weights\": \"pissa\"", "init_lora_weights: is not supported"},
      {"[\n    \"c_fc\"\n  ]", "\"all-linear\"", "target_modules: is not supported"},
      {"[\n    \"c_fc\"\n  ]", "[1]", "target_modules: is not supported"},
      {"[\n    \"c_fc\"\n  ]", "[]", "targets must contain a layer name"},
      {"\"c_fc\"", "\"c_fd\"", "target_modules: no layer is called 'c_fd'"},
      {"\"c_fc\"", "\"c_attn\"", "4 missing"},
      {"\"c_fc\"", "\"wte\"", "target_modules: cannot carry an adapter"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.from, row.to);
    std::string text = good;
    REQUIRE(text.find(row.from) != std::string::npos);
    std::ofstream(path) << text.replace(text.find(row.from), std::string(row.from).size(), row.to);
    refused(row.says);
  }
  std::ofstream(path) << good;
  REQUIRE(save_safetensors(Fs::posix(), folder + "/adapter_model.safetensors", {{"x", torch::ones({3, 3})}}).ok());
  refused("r: does not fit the adapters");
  std::filesystem::remove(folder + "/adapter_model.safetensors");
  refused("adapter_model.safetensors");
}
