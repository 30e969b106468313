// float16 on CUDA devices: steps whose scaled gradients are infinite are skipped, with every strategy.
#include "runs_on_device.h"
#include "trainkit/train/checkpoint.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

constexpr int64_t kBefore = 4;

/// The loss scale of runs that are this small never overflows by itself: raises that of a run's last checkpoint.
std::string with_loss_scale(const Runs& runs, const std::string& name, double scale) {
  CheckpointContents contents = CheckpointStore::open(runs.dir / name).value().load(kBefore).value();
  double* const saved = std::get_if<double>(&contents.state.at("scaler.scale"));
  REQUIRE(saved != nullptr);
  *saved = scale;
  const std::string folder = runs.dir / (name + "_scaled");
  REQUIRE(CheckpointStore::open(folder).value().save(kBefore, contents).ok());
  return folder;
}

struct Outcome {
  std::vector<Loss> losses;
  std::vector<int64_t> skipped;  // steps
};

Outcome run(const Runs& runs, const std::string& name, const Setting& setting) {
  Outcome outcome{runs.run(name, setting, kBefore), {}};
  for (int64_t step = kBefore; step <= runs.trainer.steps; ++step) {
    const std::string line = "step " + std::to_string(step) + " is skipped: its gradients are not finite";
    if (runs.printed.find(line) != std::string::npos) outcome.skipped.push_back(step);
  }
  return outcome;
}

/// On one device, eagerly and with a CUDA graph; with several devices if `is_parallel`.
void check_skipped_steps(Trainer trainer, bool is_parallel = is_full()) {
  trainer.flags.insert(trainer.flags.end(), {"--eval_every", "0"});
  trainer.steps = kBefore;
  Runs runs(trainer);
  const std::vector<std::string> half = {"--device", "cuda", "--precision", "fp16"};
  runs.run("first", {.flags = half});
  const std::string checkpoint = with_loss_scale(runs, "first", 1 << 30);
  runs.trainer.steps = 24;
  const auto setting = [&](const std::vector<std::string>& more, int64_t devices, int64_t ranks) {
    Setting all{
        .flags = half, .device = {"CUDA_SIM_DEVICES=" + std::to_string(devices)}, .devices = devices, .ranks = ranks};
    all.flags.insert(all.flags.end(), {"--resume", checkpoint});
    all.flags.insert(all.flags.end(), more.begin(), more.end());
    return all;
  };
  const Outcome eager = run(runs, "eager", setting({"--cuda_graph", "off"}, 1, 1));
  CHECK(eager.skipped.size() >= 3);
  CHECK(eager.skipped.size() < 17);  // the scale has become small enough
  const Outcome graph = run(runs, "graph", setting({"--cuda_graph", "on"}, 1, 1));
  CHECK(graph.skipped == eager.skipped);
  CHECK(graph.losses == eager.losses);
  if (!is_parallel) return;
  // Each replica scales its loss by its share of the rows, so that it may overflow one step earlier or later.
  const auto check_alike = [&](const Outcome& outcome) {
    CHECK(outcome.skipped.size() + 1 >= eager.skipped.size());
    CHECK(outcome.skipped.size() <= eager.skipped.size() + 1);
    check_close(outcome.losses, eager.losses, 5e-2);
  };
  check_alike(run(runs, "dp", setting({"--use_multi_gpu", "--gpu_ids", "0", "1"}, 2, 1)));
  check_alike(run(runs, "ddp", setting({}, 2, 2)));
}

}  // namespace

TEST_CASE("trainkit-transformer skips steps in float16 alike with every strategy", "[cuda_sim][skipped_steps]") {
  check_skipped_steps(transformer(), /*is_parallel=*/true);
}
TEST_CASE("trainkit-hsi skips steps in float16 alike with every strategy", "[cuda_sim][skipped_steps]") {
  check_skipped_steps(hsi());
}
TEST_CASE("trainkit-gpt2rec skips steps in float16 alike with every strategy", "[cuda_sim][skipped_steps]") {
  Trainer trainer = gpt2rec();  // bpr_mf has no layer that autocast computes in float16
  trainer.flags = {"--model", "gpt2", "--n_layer", "1", "--n_embd", "16", "--n_head", "2", "--vocab_size", "0",
                   "--embed_dim", "8",
                   // chosen by the data otherwise; the folder of the raised checkpoint has no record of it
                   "--embedding_decay", "0.1"};
  check_skipped_steps(trainer);
}
TEST_CASE("trainkit-emotion skips steps in float16 alike with every strategy", "[cuda_sim][skipped_steps]") {
  if (is_full()) check_skipped_steps(emotion());  // ResNet18's steps are slow here
}
