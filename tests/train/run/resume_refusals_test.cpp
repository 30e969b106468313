// Checkpoints that verify but do not belong to the run that resumes from them.
#include <torch/torch.h>

#include <catch2/catch.hpp>

#include "test_util.h"
#include "train/loop_util.h"
#include "trainkit/core/error.h"
#include "trainkit/data/sampler.h"
#include "trainkit/optim/adam.h"
#include "trainkit/optim/sgd.h"
#include "trainkit/train/checkpoint.h"
#include "trainkit/train/trainer.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

constexpr int64_t kStep = 6;

/// Properties that may differ on resume.
struct Changed {
  int64_t rows = 52, steps = 20;
  uint64_t seed = 3;
  bool sgd = false, schedule = true;
  int64_t cpu_replicas = 1, batch_size = 4;
};

absl::StatusOr<TrainerResult> run(const std::string& output_dir, const Changed& changed, const std::string& resume) {
  torch::manual_seed(11);
  auto devices = DeviceReplicator::create([] { return TinyNet(); }, {.cpu_replicas = changed.cpu_replicas}).value();
  auto loader = Prefetcher::create(tiny_dataset(changed.rows), RandomSampler(changed.rows, {.seed = changed.seed}),
                                   {.batch_size = changed.batch_size})
                    .value();
  TrainerOptions options{.max_epochs = 0,
                         .max_steps = resume.empty() ? kStep : changed.steps,
                         .grad_clip = 1,
                         .save_every = kStep,
                         .output_dir = output_dir,
                         .resume = resume};
  if (changed.schedule) options.schedule = create_schedule({.name = "cosine", .total_steps = 20}).value();
  std::unique_ptr<Optimizer> optimizer = std::make_unique<AdamW>(AdamWOptions{.lr = 1e-2});
  if (changed.sgd) optimizer = std::make_unique<SGD>(SGDOptions{.lr = 1e-2, .momentum = 0.9});
  return Trainer::create(*devices, std::move(optimizer), options).value().fit(*loader, tiny_loss);
}

struct Row {
  const char* name;
  std::function<void(CheckpointContents&)> edit;
  ExitCode code;
  const char* text;
  Changed changed = {};
};

auto without(const char* prefix) {
  return [prefix](CheckpointContents& contents) {
    std::erase_if(contents.state, [&](const auto& entry) { return entry.first.starts_with(prefix); });
  };
}
auto set(const char* name, StateValue value) {
  return [=](CheckpointContents& contents) { contents.state[name] = value; };
}
const auto kNothing = [](CheckpointContents&) {};

}  // namespace

TEST_CASE("A checkpoint of another run is refused with the mismatch, and the run folder stays unchanged",
          "[train][checkpoint][resume]") {
  const Row rows[] = {
      {"parameter missing", [](auto& c) { c.model.pop_back(); }, ExitCode::kWeights, "(out.weight)"},
      {"parameter surplus", [](auto& c) { c.model.emplace_back("extra.weight", torch::ones({2})); }, ExitCode::kWeights,
       "(extra.weight)"},
      {"parameter renamed", [](auto& c) { c.model[0].first = "other"; }, ExitCode::kWeights, "unexpected (other)"},
      {"parameter of another shape",
       [](auto& c) {
         c.model[0].second = torch::ones({3, 3});
       },
       ExitCode::kWeights, "hidden.bias"},
      {"another optimizer", kNothing, ExitCode::kWeights, "optimizer", {.sgd = true}},
      {"optimizer's tensor missing", [](auto& c) { c.optimizer.pop_back(); }, ExitCode::kWeights, "optimizer"},
      {"optimizer's tensor surplus", [](auto& c) { c.optimizer.emplace_back("state.x.exp_avg", torch::ones({2})); },
       ExitCode::kWeights, "state.x.exp_avg"},
      {"optimizer's tensor of another shape", [](auto& c) { c.optimizer[0].second = torch::ones({7}); },
       ExitCode::kWeights, "hidden"},
      {"a group missing", without("optimizer.groups.1"), ExitCode::kWeights, "groups.1"},
      {"a group surplus", set("optimizer.groups.7.weight_decay", 0.1), ExitCode::kWeights, "groups.7"},
      {"schedule missing", without("scheduler."), ExitCode::kWeights, "base_lr"},
      {"schedule surplus", kNothing, ExitCode::kOk, "", {.schedule = false}},
      {"rate not a number", set("scheduler.base_lr", std::nan("")), ExitCode::kWeights, "base_lr"},
      {"scaler missing where none is used", without("scaler."), ExitCode::kOk, ""},
      {"generator missing", without("rng."), ExitCode::kWeights, "cpu"},
      {"generator of another kind", set("rng.cpu", torch::zeros({16}, at::kByte)), ExitCode::kWeights,
       "is not a state of this generator"},
      {"generator of a device that is not here", set("rng.cuda.0", torch::zeros({16}, at::kByte)), ExitCode::kOk, ""},
      {"generators of invalid ranks", set("rng_ranks", torch::zeros({2, 16}, at::kByte)), ExitCode::kWeights,
       "rng_ranks: does not have one row of bytes per rank"},
      {"another data set", kNothing, ExitCode::kWeights, "made with another data set", {.rows = 48}},
      {"other rows of the same number",
       [](auto& c) {
         auto digest = get_state<std::string>(c.state, "loader.digest").value();
         digest.back() = digest.back() == '7' ? '8' : '7';
         c.state["loader.digest"] = digest;
       },
       ExitCode::kWeights, "made with other rows"},
      {"rows of a checkpoint that has no digest", without("loader.digest"), ExitCode::kOk, ""},
      {"another order of rows", kNothing, ExitCode::kWeights, "another order of rows", {.seed = 4}},
      {"place behind the epoch's end", set("loader.rows", int64_t{53}), ExitCode::kWeights, "rows: out of range"},
      {"place before its beginning", set("loader.rows", int64_t{-4}), ExitCode::kWeights, "rows: out of range"},
      {"epoch below 0", set("loader.epoch", int64_t{-1}), ExitCode::kWeights, "epoch: out of range"},
      {"place missing", without("loader."), ExitCode::kWeights, "epoch"},
      {"counters missing", without("trainer.step"), ExitCode::kWeights, "step"},
      {"counter of another type", set("trainer.step", std::string("six")), ExitCode::kWeights, "step"},
      {"counters of another step", set("trainer.step", int64_t{-6}), ExitCode::kWeights,
       "trainer.step: belongs to another step (got '-6', expected 6)"},
      {"split of 0", set("trainer.split", int64_t{0}), ExitCode::kWeights, "split: is out of range"},
      {"devices that do not share its rows",
       kNothing,
       ExitCode::kDistributed,
       "global_batch_size",
       {.cpu_replicas = 3, .batch_size = 3}},
      {"weights not finite", [](auto& c) { c.model[0].second = torch::full({16}, NAN); }, ExitCode::kNumerics,
       "not finite"},
      {"a run that has ended", kNothing, ExitCode::kOk, "", {.steps = 3}},
      {"rows of an older version", without("rows."), ExitCode::kOk, ""},
  };
  for (const Row& row : rows) {
    const TempDir dir;
    REQUIRE(run(dir / "run", {}, "").ok());
    {
      auto contents = load_checkpoint({.folder = dir / "run/checkpoints", .step = kStep}).value();
      row.edit(contents);
      REQUIRE(CheckpointStore::open(dir / "run").value().save(kStep, contents).ok());
    }
    const absl::Status status = run(dir / "run", row.changed, "latest").status();
    INFO(row.name << "\n" << error_text(status));
    CHECK((status.ok() ? ExitCode::kOk : exit_code(status)) == row.code);
    if (!status.ok()) CHECK_THAT(error_line(status), Catch::Contains(row.text));
    const CheckpointPath latest = resolve_checkpoint("latest", dir / "run").value();
    if (!status.ok()) CHECK(latest.step == kStep);
    CHECK(verify_checkpoint(latest) == absl::OkStatus());
  }
}
