// Compares the memory that a trainer predicts with the counts of LibTorch's caching allocator on the simulated device.
#include <nlohmann/json.hpp>

#include "apps/demo_data.h"
#include "simulated_program.h"
#include "test_util.h"

using namespace trainkit::test;

namespace {

constexpr int64_t kKiB = 1024, kMiB = 1024 * kKiB;

// Tolerances: a share of the real memory; for models of a few MiB, tensors of a few bytes each and one segment of the
// allocator.
constexpr double kAllocatedShare = 0.02, kReservedShare = 0.05;
constexpr int64_t kFewBytes = 64 * kKiB, kSegment = 2 * kMiB;

struct Model {
  std::string name;
  std::string program;
  std::vector<std::string> data_flags;  // % is replaced by the data folder
  std::vector<std::string> flags;
};

const std::vector<Model>& models() {
  static const std::vector<std::string> scene = {"--cube", "%/demo.mat", "--gt", "%/demo_gt.mat", "--no-write_maps"};
  static const std::vector<Model> all = {
      {"transformer",
       "trainkit-transformer",
       {"--input", "%/short.txt"},
       {"--hidden_dim", "64", "--n_layers", "2", "--n_heads", "2", "--block_size", "64", "--sample_tokens", "1"}},
      {"dropout",
       "trainkit-transformer",
       {"--input", "%/short.txt"},
       {"--hidden_dim", "64", "--n_layers", "2", "--n_heads", "4", "--block_size", "256", "--sample_tokens", "1",
        "--dropout", "0.2"}},
      {"accumulated",
       "trainkit-transformer",
       {"--input", "%/short.txt"},
       {"--hidden_dim", "128", "--n_layers", "2", "--n_heads", "2", "--block_size", "32", "--sample_tokens", "1",
        "--grad_accum_steps", "3"}},
      {"cnn2d", "trainkit-hsi", scene, {"--model", "cnn2d", "--patch_size", "5", "--train_ratio", "0.8"}},
      {"hybridsn", "trainkit-hsi", scene, {"--model", "hybridsn", "--patch_size", "9", "--train_ratio", "0.9"}},
      {"bpr_mf", "trainkit-gpt2rec", {"--data_dir", "%/ml-1m"}, {"--model", "bpr_mf", "--embed_dim", "256"}},
      {"gpt2", "trainkit-gpt2rec", {"--data_dir", "%/ml-1m"}, {}},
      {"emotion",
       "trainkit-emotion",
       {"--data_dir", "%"},
       {"--model_size", "simple", "--frames", "2", "--image_size", "32", "--audio_seconds", "1"}}};
  return all;
}

/// How a model is trained.
struct Setting {
  std::string model;
  int64_t rows;
  std::string precision;
  std::string strategy;  // eager, graph, dp, ddp; with --shard: dp_optimizer, dp_gradients, ddp_optimizer, ...
  std::string text() const { return model + ", " + std::to_string(rows) + " rows, " + precision + ", " + strategy; }
};

class Runs {
 public:
  explicit Runs(const std::string& model)
      : model_(*std::find_if(models().begin(), models().end(), [&](const Model& m) { return m.name == model; })) {
    copy_demo_data(model_.program, dir_ / "data");
    std::ofstream(dir_ / "data/short.txt") << read_text(dir_ / "data/demo.txt").substr(0, 12000);
  }

  /// Returns summary.json of a run of a few steps.
  nlohmann::json run(const Setting& setting) const {
    std::vector<std::string> arguments = flags(setting);
    std::vector<std::string> device = {"CUDA_SIM_CC=80", "CUDA_SIM_NUMBERS=0"};  // only memory is compared
    std::string program = model_.program;
    if (setting.strategy == "eager") arguments.insert(arguments.end(), {"--cuda_graph", "off"});
    if (setting.strategy.starts_with("dp"))
      arguments.insert(arguments.end(), {"--use_multi_gpu", "--gpu_ids", "0", "1"});
    if (const size_t at = setting.strategy.find("dp_"); at != std::string::npos) {
      arguments.insert(arguments.end(), {"--shard", setting.strategy.substr(at + 3)});
    }
    if (setting.strategy.starts_with("ddp")) {
      arguments.insert(arguments.begin(), {"launch", "--nproc_per_node", "2", "--",
                                           std::string(TRAINKIT_BIN_DIR) + "/" + std::exchange(program, "trainkit")});
    }
    if (setting.strategy.find("dp") != std::string::npos) device.emplace_back("CUDA_SIM_DEVICES=2");
    ProgramOptions options;
    options.environment = simulated(device);
    Program started(program, arguments, dir_.path().string(), options);
    const int code = started.wait();
    INFO(started.errors());
    REQUIRE(code == 0);
    return nlohmann::json::parse(read_text(dir_ / "run/summary.json"));
  }

 private:
  std::vector<std::string> flags(const Setting& setting) const {
    std::filesystem::remove_all(dir_ / "run");
    std::vector<std::string> all = {"--output_dir", dir_ / "run",
                                    "--batch_size", std::to_string(setting.rows),
                                    "--precision",  setting.precision,
                                    "--device",     "cuda",
                                    "--max_steps",  "8",
                                    "--epochs",     "1000",
                                    "--eval_every", "0",
                                    "--save_every", "0"};
    for (std::string flag : model_.data_flags) {
      if (const size_t at = flag.find('%'); at != std::string::npos) flag.replace(at, 1, dir_ / "data");
      all.push_back(flag);
    }
    all.insert(all.end(), model_.flags.begin(), model_.flags.end());
    return all;
  }

  Model model_;
  TempDir dir_;
};

void check_close(const nlohmann::json& summary, const std::string& what, double share, int64_t least) {
  const auto predicted = summary.value("predicted_" + what + "_bytes", int64_t{0});
  const auto real = summary.value("real_" + what + "_bytes", int64_t{0});
  const double relative = 100 * (static_cast<double>(predicted) / static_cast<double>(real) - 1);
  INFO(what << ": " << predicted << " bytes predicted, " << real << " real: " << relative << " %");
  REQUIRE(real > 0);
  REQUIRE(predicted > 0);
  CHECK(static_cast<double>(std::abs(predicted - real)) <=
        std::max(share * static_cast<double>(real), static_cast<double>(least)));
}

void check(const Runs& runs, const Setting& setting) {
  INFO(setting.text());
  const nlohmann::json summary = runs.run(setting);
  check_close(summary, "memory", kAllocatedShare, kFewBytes);
  check_close(summary, "reserved", kReservedShare, kSegment);
}

/// All precisions and strategies of a model.
std::vector<Setting> combinations(const std::string& model, const std::vector<int64_t>& sizes) {
  std::vector<Setting> settings;
  for (const int64_t rows : sizes) {
    for (const std::string precision : {"fp32", "fp16", "bf16"}) {
      for (const std::string strategy :
           {"eager", "graph", "dp", "dp_optimizer", "dp_gradients", "ddp", "ddp_optimizer", "ddp_gradients"}) {
        settings.push_back({model, rows, precision, strategy});
      }
    }
  }
  return settings;
}

void check_all(const std::string& model, const std::vector<Setting>& settings) {
  const Runs runs(model);
  for (const Setting& setting : settings) check(runs, setting);
}

}  // namespace

TEST_CASE("trainkit-transformer predicts its memory", "[cuda_sim][transformer]") {
  check_all("accumulated", {{"accumulated", 8, "fp32", "ddp"},
                            {"accumulated", 8, "fp32", "ddp_gradients"},
                            {"accumulated", 8, "fp32", "dp_gradients"}});
  if (is_full()) {
    check_all("accumulated", combinations("accumulated", {8}));
    return check_all("transformer", combinations("transformer", {5, 12}));
  }
  check_all("dropout", {{"dropout", 8, "fp32", "graph"}, {"dropout", 8, "bf16", "graph"}});
  check_all("transformer", {{"transformer", 12, "fp32", "graph"},
                            {"transformer", 8, "bf16", "ddp"},
                            {"transformer", 8, "fp16", "ddp_optimizer"},
                            {"transformer", 8, "fp16", "dp_optimizer"}});
}
TEST_CASE("trainkit-hsi predicts its memory", "[cuda_sim][hsi]") {
  if (!is_full()) return check_all("cnn2d", {{"cnn2d", 64, "fp32", "eager"}, {"cnn2d", 16, "fp16", "graph"}});
  check_all("cnn2d", combinations("cnn2d", {16, 64}));
  check_all("hybridsn", combinations("hybridsn", {16}));
}
TEST_CASE("trainkit-gpt2rec predicts its memory", "[cuda_sim][gpt2rec]") {
  if (!is_full()) {
    return check_all("bpr_mf", {{"bpr_mf", 128, "fp32", "eager"},
                                {"bpr_mf", 48, "bf16", "graph"},
                                {"bpr_mf", 128, "fp32", "dp"},
                                {"bpr_mf", 48, "fp32", "ddp"}});
  }
  check_all("bpr_mf", combinations("bpr_mf", {48, 512}));
  check_all("gpt2", combinations("gpt2", {8}));
}
TEST_CASE("trainkit-emotion predicts its memory", "[cuda_sim][emotion]") {
  if (is_full()) return check_all("emotion", combinations("emotion", {4, 7}));
  // More gradients than one bucket of ddp holds.
  check_all("emotion", {{"emotion", 6, "bf16", "eager"}, {"emotion", 4, "fp32", "dp"}, {"emotion", 4, "fp32", "ddp"}});
}
