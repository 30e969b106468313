// The four trainers on simulated devices: the CPU's losses with each strategy, and no findings of the device.
#include <fstream>

#include "runs_on_device.h"

using namespace trainkit::test;

namespace {

/// Runs on simulated devices have the CPU's losses with every strategy, and with these values of --shard.
void check_strategies(const Runs& runs, std::vector<std::string> shards = {"none"}) {
  if (is_full()) shards = {"none", "optimizer", "gradients"};
  const Setting on_cpu{.flags = {"--device", "cpu", "--precision", "fp32"}, .is_simulated = false};
  const auto expected = runs.run("cpu", on_cpu);
  const std::vector<std::string> cuda = {"--device", "cuda", "--precision", "fp32"};
  const auto with = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), cuda.begin(), cuda.end());
    return flags;
  };
  check_close(runs.run("eager", {.flags = with({"--cuda_graph", "off"}), .device = {"CUDA_SIM_RANDOM_DELAY_US=100"}}),
              expected);
  check_close(runs.run("graph", {.flags = cuda, .device = {"CUDA_SIM_RANDOM_DELAY_US=100"}}), expected);
  Setting cpus = on_cpu;  // class weights and BatchNorm statistics depend on how rows are divided
  cpus.devices = 3;
  cpus.flags.insert(cpus.flags.end(), {"--parallel", "3"});
  const auto on_cpus = runs.run("dp_cpu", cpus);
  for (const std::string& shard : shards) {
    check_close(
        runs.run("dp_" + shard, {.flags = with({"--use_multi_gpu", "--gpu_ids", "0", "1", "2", "--shard", shard}),
                                 .device = {"CUDA_SIM_DEVICES=3", "CUDA_SIM_RANDOM_DELAY_US=100"},
                                 .devices = 3}),
        on_cpus);
  }
  Setting ranks = on_cpu;
  ranks.devices = ranks.ranks = 2;
  const auto on_ranks = runs.run("ddp_cpu", ranks);
  for (const std::string& shard : shards) {
    check_close(runs.run("ddp_" + shard, {.flags = with({"--shard", shard}),
                                          .device = {"CUDA_SIM_DEVICES=2", "CUDA_SIM_RANDOM_DELAY_US=100"},
                                          .devices = 2,
                                          .ranks = 2}),
                on_ranks);
  }
}

/// float16 with a GradScaler, and bfloat16, learn as float32 does on the CPU, within their precision.
void check_precisions(Trainer trainer, int64_t steps = is_full() ? 20 : 10) {
  trainer.steps = steps;
  const Runs runs(trainer);
  const auto expected = runs.run("cpu", {.flags = {"--device", "cpu", "--precision", "fp32"}, .is_simulated = false});
  check_close(runs.run("fp16", {.flags = {"--device", "cuda", "--precision", "fp16"}}), expected, 1e-2);
  check_close(runs.run("bf16", {.flags = {"--device", "cuda", "--precision", "bf16"}, .device = {"CUDA_SIM_CC=80"}}),
              expected, 4e-2);
}

/// Without evaluations, which take longer than the steps, and without batches of a few rows, for which BatchNorm
/// statistics are poorly defined.
Trainer without_evaluations(Trainer trainer) {
  trainer.flags.insert(trainer.flags.end(), {"--eval_every", "0"});
  return trainer;
}

}  // namespace

TEST_CASE("trainkit-transformer has the CPU's losses on CUDA devices", "[cuda_sim][transformer]") {
  check_strategies(Runs(transformer()), {"none", "optimizer", "gradients"});
}
TEST_CASE("trainkit-transformer has the CPU's losses on CUDA devices with packed documents",
          "[cuda_sim][transformer]") {
  Trainer trainer = transformer();
  if (!is_full()) trainer.steps = 15;
  trainer.flags.push_back("--pack_documents");
  const Runs runs(trainer);
  std::ofstream lines(runs.dir / "data/documents.jsonl");
  for (int i = 0; i < 400; ++i) lines << "{\"text\": \"line " << i << std::string(i % 37, 'a') << "\"}\n";
  lines.close();
  check_strategies(runs);
}
TEST_CASE("trainkit-hsi has the CPU's losses on CUDA devices", "[cuda_sim][hsi]") {
  check_strategies(Runs(without_evaluations(hsi())), {"none", "gradients"});
}
TEST_CASE("trainkit-gpt2rec has the CPU's losses on CUDA devices", "[cuda_sim][gpt2rec]") {
  check_strategies(Runs(gpt2rec()));
}
TEST_CASE("trainkit-emotion has the CPU's losses on CUDA devices", "[cuda_sim][emotion]") {
  if (is_full()) return check_strategies(Runs(without_evaluations(emotion())));
  check_strategies(Runs(without_evaluations(emotion_of_sound())));
  // The pictures' model on one device, since the strategies do not depend on it.
  Trainer trainer = without_evaluations(emotion());
  trainer.steps = 5;  // three eager steps, the captured one and a replay
  const Runs runs(trainer);
  check_close(runs.run("graph", {.flags = {"--device", "cuda", "--precision", "fp32"}}),
              runs.run("cpu", {.flags = {"--device", "cpu", "--precision", "fp32"}, .is_simulated = false}));
}

TEST_CASE("trainkit-transformer learns in float16 and bfloat16", "[cuda_sim][transformer]") {
  check_precisions(transformer());
}
TEST_CASE("trainkit-hsi learns in float16 and bfloat16", "[cuda_sim][hsi]") {
  check_precisions(without_evaluations(hsi()));
}
TEST_CASE("trainkit-gpt2rec learns in float16 and bfloat16", "[cuda_sim][gpt2rec]") { check_precisions(gpt2rec()); }
TEST_CASE("trainkit-emotion learns in float16 and bfloat16", "[cuda_sim][emotion]") {
  check_precisions(without_evaluations(is_full() ? emotion() : emotion_of_sound()));
}

// Loops on one device and with DataParallel: race_test.cpp.
TEST_CASE("Ranks over NCCL have no race with any number of workers and prefetched batches", "[cuda_sim][races]") {
  Trainer trainer = without_evaluations(transformer());
  trainer.steps = is_full() ? 1000 : 12;
  const Runs runs(trainer);
  for (const std::string workers : {"2", "0"}) {
    for (const std::string batches : {"1", "2", "4"}) {
      if (!is_full() && workers + batches != "21") continue;
      INFO(workers << " workers, prefetch_factor " << batches);
      std::vector<std::string> flags = {"--device", "cuda", "--num_workers", workers};
      if (workers != "0") flags.insert(flags.end(), {"--prefetch_factor", batches});
      runs.run(
          "ddp" + workers + batches,
          {.flags = flags, .device = {"CUDA_SIM_DEVICES=2", "CUDA_SIM_RANDOM_DELAY_US=100"}, .devices = 2, .ranks = 2});
    }
  }
}
