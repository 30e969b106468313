// Adapters written by a run of trainkit-gpt2rec, read by peft and by our library.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>

#include "apps/rec/rec_place.h"
#include "reference_util.h"
#include "test_util.h"
#include "trainkit/io/safetensors.h"
#include "trainkit/nn/gpt2.h"
#include "trainkit/nn/lora.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

/// A run with adapters for a GPT-2 with random weights in `base`.
struct AdaptedRun {
  explicit AdaptedRun(std::vector<std::string> more = {}) {
    torch::manual_seed(4);
    GPT2Model gpt2(GPT2Config{.vocab_size = 50257, .n_positions = 32, .n_embd = 8, .n_layer = 2, .n_head = 2});
    const absl::Status saved = save_gpt2(*gpt2, base);
    REQUIRE(saved.ok());
    more.insert(more.end(), {"--model", "gpt2", "--gpt2", base, "--vocab", data_dir() + "/gpt2_bpe", "--lora_rank", "3",
                             "--lora_targets", "c_attn", "mlp.c_proj", "--epochs", "3", "--lr", "0.05"});
    const Ended ended = run_to_end("trainkit-gpt2rec", place.flags("run", more), place.dir.path().string());
    INFO(ended.errors);
    REQUIRE(ended.code == 0);
  }
  std::string out(const std::string& name) const { return place.dir / "run" + "/" + name; }
  RecPlace place;
  std::string base = place.dir / "base";
};

bool has_peft() { return python_has("peft transformers"); }

at::Tensor hidden_of(GPT2Model& model, const at::Tensor& ids) {
  const at::NoGradGuard no_grad;
  model->eval();
  return model->forward(ids);
}

}  // namespace

TEST_CASE("The adapters of a run are trained, saved with the best weights, and merged into a GPT-2",
          "[apps][rec][lora]") {
  if (data_dir().empty()) TRAINKIT_SKIP("TRAINKIT_TEST_DATA is not set");
  const AdaptedRun run({"--merge_lora"});
  const SafetensorsFile best = SafetensorsFile::open(run.out("best.safetensors")).value();
  GPT2Model adapted = load_gpt2(run.base).value();
  const LoRAConfig config = load_lora(*adapted, run.out("results/best_adapter")).value();
  CHECK(config.rank == 3);
  CHECK(config.alpha == 16);
  int adapters = 0;
  double moved = 0;
  for (const auto& item : adapted->named_parameters()) {
    if (item.key().find(".lora_") == std::string::npos) continue;
    ++adapters;
    CHECK(at::equal(item.value(), best.tensor("gpt2." + item.key()).value()));
    if (item.key().ends_with("lora_B.weight")) moved += item.value().abs().sum().item<double>();
  }
  CHECK(adapters == 2 * 2 * 2);
  CHECK(moved > 0);  // B is initially 0
  GPT2Model last = load_gpt2(run.base).value();
  CHECK(load_lora(*last, run.out("results/adapter")).ok());

  const at::Tensor ids = at::randint(50257, {3, 7}, at::kLong);
  GPT2Model merged = load_gpt2(run.out("results/merged")).value(), plain = load_gpt2(run.base).value();
  const at::Tensor expected = hidden_of(adapted, ids);
  CHECK((hidden_of(merged, ids) - expected).abs().max().item<double>() < 1e-4);
  CHECK((hidden_of(plain, ids) - expected).abs().max().item<double>() > 1e-3);
}

TEST_CASE("peft loads the adapters of a run and gives our hidden states", "[apps][rec][lora]") {
  if (data_dir().empty()) TRAINKIT_SKIP("TRAINKIT_TEST_DATA is not set");
  if (!has_peft()) TRAINKIT_SKIP("no Python with peft");
  const AdaptedRun run;
  const std::string out = run.place.dir / "peft.safetensors";
  run_reference("lora.py", out + " --base " + run.base + " --adapter " + run.out("results/best_adapter"));
  const SafetensorsFile theirs = SafetensorsFile::open(out).value();
  GPT2Model model = load_gpt2(run.base).value();
  REQUIRE(load_lora(*model, run.out("results/best_adapter")).ok());
  const at::Tensor hidden = hidden_of(model, theirs.tensor("x").value());
  CHECK((hidden - theirs.tensor("adapted").value()).abs().max().item<double>() < 1e-4);
  CHECK((hidden - theirs.tensor("y").value()).abs().max().item<double>() > 1e-3);
  CHECK_FALSE(std::filesystem::exists(run.out("results/merged")));
}
