// A step in the middle of a run makes only the necessary CUDA calls: no synchronisation, no copy from pageable memory,
// no allocation from CUDA.
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "runs_on_device.h"
#include "trainkit/io/safetensors.h"
#include "trainkit/train/checkpoint.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

/// Steps until graphs are captured and memory is allocated, and those that are counted.
const int64_t kWarm = is_full() ? 12 : 6, kMore = is_full() ? 20 : 8;

/// The devices' counts in a run, summed over its processes.
std::map<std::string, int64_t> counted(Runs& runs, const std::string& strategy, int64_t steps, Setting setting) {
  const std::string name = strategy + std::to_string(steps);
  runs.trainer.steps = steps;
  setting.device.push_back("CUDA_SIM_REPORT=" + (runs.dir / name) + ".counts");
  runs.run(name, setting);
  std::map<std::string, int64_t> sums;
  std::istringstream lines(read_text((runs.dir / name) + ".counts"));
  for (std::string line; std::getline(lines, line);) {
    const auto counts = nlohmann::json::parse(line).get<std::map<std::string, int64_t>>();
    for (const auto& [what, count] : counts) sums[what] += count;
  }
  return sums;
}

const std::vector<std::pair<std::string, Setting>>& strategies() {
  static const std::vector<std::pair<std::string, Setting>> all = {
      {"eager", {.flags = {"--cuda_graph", "off"}}},
      {"graph", {.flags = {"--cuda_graph", "auto"}}},
      {"dp",
       {.flags = {"--use_multi_gpu", "--gpu_ids", "0", "1", "2", "--sync_batchnorm", "off"},
        .device = {"CUDA_SIM_DEVICES=3"},
        .devices = 3}},
      {"dp_optimizer",
       {.flags = {"--use_multi_gpu", "--gpu_ids", "0", "1", "2", "--sync_batchnorm", "off", "--shard", "optimizer"},
        .device = {"CUDA_SIM_DEVICES=3"},
        .devices = 3}},
      {"dp_gradients",
       {.flags = {"--use_multi_gpu", "--gpu_ids", "0", "1", "2", "--sync_batchnorm", "off", "--shard", "gradients"},
        .device = {"CUDA_SIM_DEVICES=3"},
        .devices = 3}},
      {"ddp", {.flags = {"--sync_batchnorm", "off"}, .device = {"CUDA_SIM_DEVICES=2"}, .devices = 2, .ranks = 2}},
      {"optimizer", {.flags = {"--shard", "optimizer"}, .device = {"CUDA_SIM_DEVICES=2"}, .devices = 2, .ranks = 2}},
      {"gradients", {.flags = {"--shard", "gradients"}, .device = {"CUDA_SIM_DEVICES=2"}, .devices = 2, .ranks = 2}}};
  return all;
}

/// `chosen`: strategies to run without TRAINKIT_TEST_FULL, which runs all.
void check_steady(const Trainer& trainer, const std::set<std::string>& chosen) {
  Runs runs(trainer);
  for (auto [strategy, setting] : strategies()) {
    if (!is_full() && !chosen.count(strategy)) continue;
    setting.flags.insert(setting.flags.end(),
                         {"--device", "cuda", "--precision", "fp32", "--eval_every", "0", "--drop_last"});
    setting.device.push_back("CUDA_SIM_NUMBERS=0");  // only calls are counted
    if (trainer.name != "trainkit-emotion") setting.flags.insert(setting.flags.end(), {"--save_every", "1000"});
    const auto warm = counted(runs, strategy, kWarm, setting);
    auto all = counted(runs, strategy, kWarm + kMore, setting);
    INFO(trainer.name << " " << strategy);
    for (const char* what : {"pageable", "stream_syncs", "device_syncs"}) {
      INFO(what);
      CHECK(all[what] == warm.at(what));
    }
    CHECK(all["mallocs"] - warm.at("mallocs") <= 1);  // late streams may need one segment more
    const int64_t graphs = all["graph_launches"] - warm.at("graph_launches");
    const bool is_graph = strategy != "eager";
    CHECK(graphs <= (is_graph ? setting.ranks * kMore : 0));
    CHECK(graphs >= (is_graph ? setting.ranks * (kMore - 1) : 0));  // the last step of an epoch may be eager
    CHECK(all["to_device"] + all["on_device"] > warm.at("to_device") + warm.at("on_device"));  // the counter works
  }
}

}  // namespace

TEST_CASE("A steady step of trainkit-transformer does not synchronise", "[cuda_sim][steady]") {
  check_steady(transformer(), {"eager", "ddp", "gradients", "dp_gradients"});
}
TEST_CASE("A steady step of trainkit-hsi does not synchronise", "[cuda_sim][steady]") {
  check_steady(hsi(), {"graph", "dp"});
}
TEST_CASE("A steady step of trainkit-gpt2rec does not synchronise", "[cuda_sim][steady]") {
  check_steady(gpt2rec(), {"graph"});
}
TEST_CASE("A steady step of trainkit-emotion does not synchronise", "[cuda_sim][steady]") {
  check_steady(emotion(), {"dp"});
}

TEST_CASE("trainkit scale predicts the collectives of a step and the bytes that each device sends",
          "[cuda_sim][steady]") {
  for (const int64_t ranks : {1, 2, 4}) {
    for (const std::string shard : {"none", "optimizer", "gradients"}) {
      if (!is_full() && (ranks != 2 || shard == "gradients")) continue;
      INFO(ranks << " ranks, --shard " << shard);
      Trainer trainer = transformer();  // with two micro-batches
      trainer.flags[1] = "256";         // more than one bucket
      Runs runs(trainer);
      const Setting setting{.flags = {"--device", "cuda", "--precision", "fp32", "--eval_every", "0", "--save_every",
                                      "1000", "--drop_last", "--shard", shard},
                            .device = {"CUDA_SIM_DEVICES=" + std::to_string(ranks), "CUDA_SIM_NUMBERS=0"},
                            .devices = ranks,
                            .ranks = ranks};
      const auto warm = counted(runs, "scale_" + shard, kWarm, setting);
      const auto all = counted(runs, "scale_" + shard, kWarm + kMore, setting);
      const double per_rank = static_cast<double>(kMore * ranks);
      const double messages = static_cast<double>(all.at("nccl_calls") - warm.at("nccl_calls")) / per_rank;
      // NCCL's counts are a rank's part of a reduce-scatter and of an all-gather, but the whole of an all-reduce.
      const double counted_bytes = static_cast<double>(all.at("nccl_bytes") - warm.at("nccl_bytes")) / per_rank;
      const double n = static_cast<double>(ranks);
      const double sent = shard == "none" ? 2 * (n - 1) / n * counted_bytes : (n - 1) * counted_bytes;

      const std::string run = "scale_" + shard + std::to_string(kWarm + kMore);
      const auto weights =
          SafetensorsFile::open(resolve_checkpoint("latest", runs.dir / run)->path() + "/model.safetensors");
      REQUIRE(weights.ok());
      int64_t bytes = 0;
      for (const auto& entry : weights->entries()) bytes += entry.end - entry.begin;
      Program scale("trainkit",
                    {"scale", "--json", "--step_seconds", "0.1", "--gradient_mb",
                     std::to_string(static_cast<double>(bytes) / 1e6), "--devices", std::to_string(ranks), "--inside",
                     "pcie4", "--shard", shard, "--grad_accum_steps", "2"},
                    runs.dir.path().string());
      REQUIRE(scale.wait() == 0);
      const auto predicted = nlohmann::json::parse(scale.output())["predictions"].back();
      // Besides: the logged loss, and the norm of the gradients over all parts.
      const double others = ranks == 1 ? 0 : shard == "none" ? 1 : 2;
      CHECK(messages == Approx(predicted["messages"].get<double>() + others));
      CHECK(sent == Approx(predicted["sent_bytes"].get<double>()).epsilon(0.01));
    }
  }
}
