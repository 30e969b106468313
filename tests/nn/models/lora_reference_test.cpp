// LoRA compared with peft's: the same adapters give the same outputs and gradients, and load in both directions.
#include <torch/nn/init.h>

#include "reference_util.h"
#include "test_util.h"
#include "trainkit/io/safetensors.h"
#include "trainkit/nn/gpt2.h"
#include "trainkit/nn/lora.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

bool has_peft() {
  static const bool found = python_has("peft transformers");
  return found;
}

double worst_lora_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.detach() - b).abs().max().item<double>();
}

/// lora_loss() of the Python scripts.
at::Tensor lora_loss(const at::Tensor& x) { return (x * (torch::arange(x.numel()) % 7 - 3).view_as(x)).sum(); }

/// The Mlp of lora.py.
struct MlpImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return down->forward(up->forward(x).relu()); }
  Linear up = register_module("up", Linear(6, 10));
  Linear down = register_module("down", Linear(10, 4, false));
};
TORCH_MODULE(Mlp);

std::string saved_gpt2(const TempDir& dir) {
  torch::manual_seed(4);
  GPT2Model model(GPT2Config{.vocab_size = 20, .n_positions = 8, .n_embd = 16, .n_layer = 2, .n_head = 2});
  REQUIRE(save_gpt2(*model, dir / "gpt2") == absl::OkStatus());
  return dir / "gpt2";
}

/// Compares outputs with and without the adapter, merged and unmerged, and the adapters' gradients.
template <class Model>
void check_parity(Model& model, const SafetensorsFile& file) {
  const at::Tensor x = file.tensor("x").value(), adapted = file.tensor("adapted").value();
  const at::Tensor out = model->forward(x);
  CHECK(worst_lora_difference(out, adapted) < 1e-5);
  CHECK(worst_lora_difference(file.tensor("y").value(), adapted) > 0.01);  // the adapter has an effect
  lora_loss(out).backward();
  size_t checked = 0;
  for (const auto& item : model->named_parameters()) {
    INFO(item.key());
    CHECK(item.value().requires_grad() == file.contains("grad:" + item.key()));
    if (!item.value().requires_grad()) continue;
    const at::Tensor expected = file.tensor("grad:" + item.key()).value();
    CHECK(worst_lora_difference(item.value().grad(), expected) < 1e-5 * (1 + expected.abs().max().item<double>()));
    ++checked;
  }
  const auto names = file.names();
  CHECK(std::count_if(names.begin(), names.end(), [](const auto& name) { return name.starts_with("grad:"); }) ==
        static_cast<int64_t>(checked));
  merge_lora(*model);
  CHECK(worst_lora_difference(model->forward(x), file.tensor("merged").value()) < 1e-5);
  unmerge_lora(*model);
  CHECK(torch::equal(model->forward(x), out));
}

}  // namespace

TEST_CASE("Adapters of peft for GPT-2 give peft's outputs and gradients", "[nn][lora]") {
  if (!has_peft()) TRAINKIT_SKIP("no Python with peft");
  const struct {
    const char *config, *flags;
    std::vector<std::string> targets;
  } rows[] = {
      {R"({"r": 4, "lora_alpha": 16, "target_modules": ["c_attn"], "fan_in_fan_out": true})", "", {"c_attn"}},
      {R"({"r": 3, "lora_alpha": 8, "target_modules": ["c_attn", "c_proj", "mlp.c_fc"], "use_rslora": true,
           "fan_in_fan_out": true})",
       "--head",
       {"c_attn", "c_proj", "mlp.c_fc"}},
      {R"({"r": 2, "target_modules": ["h.1.attn.c_proj"], "fan_in_fan_out": true, "lora_dropout": 0.25})",
       "",
       {"h.1.attn.c_proj"}},
  };
  for (const auto& row : rows) {
    CAPTURE(row.config);
    TempDir dir;
    const std::string base = saved_gpt2(dir);
    run_reference("lora.py", (dir / "out") + " --base " + base + " --lora '" + row.config + "' --save " +
                                 (dir / "adapter") + " " + row.flags);
    GPT2Model model = load_gpt2(base).value();
    const auto config = load_lora(*model, dir / "adapter");
    REQUIRE(config.status() == absl::OkStatus());
    auto sorted = config->targets;  // peft stores a set
    std::sort(sorted.begin(), sorted.end());
    CHECK(sorted == row.targets);
    model->eval();
    check_parity(model, SafetensorsFile::open(dir / "out").value());
  }
}

TEST_CASE("peft reads the adapters that we save, and gives our outputs and gradients", "[nn][lora]") {
  if (!has_peft()) TRAINKIT_SKIP("no Python with peft");
  TempDir dir;
  const std::string base = saved_gpt2(dir);
  GPT2Model model = load_gpt2(base).value();
  const LoRAConfig config{.rank = 5, .alpha = 7, .dropout = 0.1, .targets = {"attn.c_proj", "c_fc"}};
  REQUIRE(apply_lora(*model, config) == absl::OkStatus());
  for (auto& item : model->named_parameters()) {
    if (item.key().ends_with("lora_B.weight")) torch::nn::init::normal_(item.value(), 0, 0.3);
  }
  REQUIRE(save_lora(*model, config, dir / "adapter") == absl::OkStatus());
  run_reference("lora.py", (dir / "out") + " --base " + base + " --adapter " + (dir / "adapter"));
  check_parity(model, SafetensorsFile::open(dir / "out").value());
}

TEST_CASE("Adapters of peft for linear layers give peft's outputs and gradients", "[nn][lora]") {
  if (!has_peft()) TRAINKIT_SKIP("no Python with peft");
  TempDir dir;
  run_reference("lora.py", (dir / "out") +
                               R"( --mlp --lora '{"r": 2, "lora_alpha": 6, "target_modules": ["up", "down"]}')" +
                               " --save " + (dir / "adapter"));
  const SafetensorsFile file = SafetensorsFile::open(dir / "out").value();
  Mlp model;
  {
    const torch::NoGradGuard no_grad;
    for (auto& item : model->named_parameters()) item.value().copy_(file.tensor("base:" + item.key()).value());
  }
  CHECK(worst_lora_difference(model->forward(file.tensor("x").value()), file.tensor("y").value()) < 1e-6);
  REQUIRE(load_lora(*model, dir / "adapter").status() == absl::OkStatus());
  check_parity(model, file);
}
