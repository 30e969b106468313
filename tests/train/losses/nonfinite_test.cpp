// Steps with non-finite gradients: skipped, rolled back or ending the run, and reported by name.
#include <torch/torch.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "test_util.h"
#include "train/loop_util.h"
#include "trainkit/core/error.h"
#include "trainkit/data/adapters.h"
#include "trainkit/optim/adam.h"
#include "trainkit/train/checkpoint.h"
#include "trainkit/train/trainer.h"
#include "trainkit/train/weights.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

struct NormNetImpl : torch::nn::Module {
  NormNetImpl()
      : hidden(register_module("hidden", torch::nn::Linear(8, 16))),
        norm(register_module("norm", torch::nn::BatchNorm1d(16))),
        out(register_module("out", torch::nn::Linear(16, 4))) {}
  at::Tensor forward(const at::Tensor& x) { return out(torch::relu(norm(hidden(x)))); }
  torch::nn::Linear hidden;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear out;
};
TORCH_MODULE(NormNet);

constexpr int64_t kBatch = 4;

/// Batches of 4 rows in order; the rows of batch `bad` (counted from 0) contain an inf.
std::shared_ptr<const Dataset> rows_with_inf(int64_t batches, const std::vector<int64_t>& bad) {
  at::Tensor x = torch::randn({batches * kBatch, 8}, at::make_generator<at::CPUGeneratorImpl>(3));
  const at::Tensor y = x.slice(1, 0, 4).argmax(1);
  for (const int64_t batch : bad) x[batch * kBatch][2] = INFINITY;
  return std::make_shared<TensorDataset>(
      std::vector<std::pair<std::string, at::Tensor>>{{"x", x}, {"y", y}, {"row", torch::arange(batches * kBatch)}});
}

std::unique_ptr<Prefetcher> in_order(std::shared_ptr<const Dataset> dataset) {
  const int64_t rows = dataset->size();
  return Prefetcher::create(std::move(dataset), SequentialSampler(rows), {.batch_size = kBatch}).value();
}

/// Copies of all tensors of the model.
std::vector<at::Tensor> copies(const torch::nn::Module& model) {
  std::vector<at::Tensor> all;
  for (const auto& [name, tensor] : named_tensors(model)) all.push_back(tensor.clone());
  return all;
}

bool equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  REQUIRE(a.size() == b.size());
  return std::equal(a.begin(), a.end(), b.begin(), [](auto& x, auto& y) { return at::equal(x, y); });
}

/// Records the model before each step, the first row of each step, and the printed lines.
struct Watched : Logger {
  void log(const LogRecord&) override {}
  absl::Status flush() override { return absl::OkStatus(); }
  void print(std::string_view line) override { lines += std::string(line) + "\n"; }
  std::vector<std::vector<at::Tensor>> before;
  std::vector<int64_t> first_rows;
  std::string lines;
};

auto watching_loss(Watched& watched) {
  return [&watched](NormNet& model, const Batch& batch) {
    if (model->is_training()) {
      watched.before.push_back(copies(*model));
      watched.first_rows.push_back(batch["row"][0].item<int64_t>());
    }
    return at::cross_entropy_loss(model->forward(batch["x"]), batch["y"]);
  };
}

std::unique_ptr<DeviceReplicator> norm_net(const DeviceReplicatorOptions& options = {}) {
  torch::manual_seed(1);
  return DeviceReplicator::create([] { return NormNet(); }, options).value();
}

}  // namespace

TEST_CASE("A skipped step leaves weights, moments and statistics unchanged", "[train][nonfinite]") {
  auto devices = norm_net();
  auto loader = in_order(rows_with_inf(8, {3, 6}));
  Watched watched;
  const double clip = GENERATE(0.0, 1.0);
  auto trainer =
      Trainer::create(*devices, AdamW({.lr = 1e-2}),
                      {.max_epochs = 1, .grad_clip = clip, .on_nonfinite = OnNonfinite::kSkip, .log_every = 1})
          .value();
  const auto result = trainer.fit(*loader, watching_loss(watched), {.logger = &watched});
  REQUIRE(result.status() == absl::OkStatus());
  CHECK(result->steps == 8);
  CHECK(result->skipped_steps == 2);
  CHECK(std::isfinite(result->loss));
  // The search for the module does not call the loss again, and leaves the model unchanged.
  std::vector<size_t> calls;
  for (size_t i = 0; i < watched.first_rows.size(); ++i) {
    if (watched.first_rows[i] == 3 * kBatch) calls.push_back(i);
  }
  REQUIRE(calls.size() == 1);
  CHECK(equal(watched.before[calls[0]], watched.before[calls[0] + 1]));
  CHECK_FALSE(equal(watched.before[calls[0] + 1], watched.before[calls[0] + 2]));
  CHECK_THAT(watched.lines, Catch::Contains("step 4 is skipped: its gradients are not finite; first: aten::addmm "
                                            "took inf, in 'hidden'; 'x' of row 12 is inf"));

  // The following steps equal those of a run without these rows.
  auto without = norm_net();
  std::vector<int64_t> kept;
  for (int64_t row = 0; row < 8 * kBatch; ++row) {
    if (row / kBatch != 3 && row / kBatch != 6) kept.push_back(row);
  }
  auto some = in_order(std::make_shared<Subset>(rows_with_inf(8, {}), kept));
  Watched plain;
  auto reference =
      Trainer::create(*without, AdamW({.lr = 1e-2}), {.max_epochs = 1, .grad_clip = clip, .log_every = 1}).value();
  REQUIRE(reference.fit(*some, watching_loss(plain)).status() == absl::OkStatus());
  CHECK(equal(copies(*devices->module()), copies(*without->module())));
}

TEST_CASE("The EMA copies of the weights skip the same steps", "[train][nonfinite]") {
  auto devices = norm_net({.strategy = Strategy::kDataParallel, .cpu_replicas = 2, .share_weights = false});
  auto loader = in_order(rows_with_inf(6, {2}));
  auto trainer =
      Trainer::create(*devices, AdamW({.lr = 1e-2}), {.max_epochs = 1, .on_nonfinite = OnNonfinite::kSkip}).value();
  const auto result = trainer.fit(*loader, [](NormNet& model, const Batch& batch) {
    return at::cross_entropy_loss(model->forward(batch["x"]), batch["y"]);
  });
  REQUIRE(result.status() == absl::OkStatus());
  CHECK(result->skipped_steps == 1);
  for (int64_t copy = 0; copy < devices->weight_copies(); ++copy) {
    for (const auto& parameter : devices->module(copy)->named_parameters()) {
      CHECK(at::equal(parameter.value(), devices->module()->named_parameters()[parameter.key()]));
      CHECK(at::isfinite(parameter.value()).all().item<bool>());
    }
  }
}

TEST_CASE("Too many skipped steps in a row end the run with exit code 9 and the weights unchanged",
          "[train][nonfinite]") {
  auto devices = norm_net();
  auto loader = in_order(rows_with_inf(9, {1, 3, 4, 5}));
  auto trainer = Trainer::create(*devices, AdamW({.lr = 1e-2}),
                                 {.max_epochs = 1, .on_nonfinite = OnNonfinite::kSkip, .max_nonfinite = 3})
                     .value();
  Watched watched;
  const auto result = trainer.fit(*loader, watching_loss(watched), {.logger = &watched});
  CHECK(exit_code(result.status()) == ExitCode::kNumerics);
  CHECK_THAT(error_line(result.status()),
             Catch::Contains("gradients: are not finite at steps 4 to 6: aten::addmm took inf"));
  for (const at::Tensor& tensor : copies(*devices->module())) CHECK(at::isfinite(tensor).all().item<bool>());
}

TEST_CASE("With gradient clipping, non-finite gradients end the run before the weights are updated",
          "[train][nonfinite]") {
  auto devices = norm_net();
  auto loader = in_order(rows_with_inf(9, {4}));
  auto trainer =
      Trainer::create(*devices, AdamW({.lr = 1e-2}), {.max_epochs = 1, .grad_clip = 1, .log_every = 1000}).value();
  Watched watched;
  const auto result = trainer.fit(*loader, watching_loss(watched));
  CHECK(exit_code(result.status()) == ExitCode::kNumerics);
  CHECK_THAT(error_line(result.status()), Catch::Contains("step 5: aten::addmm took inf, in 'hidden'"));
  CHECK(at::isfinite(devices->module()->named_parameters()["out.weight"]).all().item<bool>());
}

TEST_CASE("Uninitialised memory is not reported as the first non-finite value", "[train][nonfinite]") {
  auto devices = norm_net();
  auto loader = in_order(rows_with_inf(3, {1}));
  auto trainer =
      Trainer::create(*devices, AdamW({.lr = 1e-2}), {.max_epochs = 1, .grad_clip = 1, .log_every = 1}).value();
  const auto result = trainer.fit(*loader, [](NormNet& model, const Batch& batch) {
    const at::Tensor memory = at::empty({8, 8});
    std::fill_n(memory.mutable_data_ptr<float>(), 64, NAN);  // like reused memory
    memory.view({64}).zero_();
    return at::cross_entropy_loss(model->forward(batch["x"]), batch["y"]) + memory.sum();
  });
  CHECK(exit_code(result.status()) == ExitCode::kNumerics);
  CHECK_THAT(error_line(result.status()), Catch::Contains("aten::addmm took inf, in 'hidden'"));
}

TEST_CASE("Values that other threads compute are not reported as the first non-finite value", "[train][nonfinite]") {
  std::atomic<bool> done{false};
  std::thread other([&] {  // like a save in the background, with more work
    const at::Tensor negative = at::full({64}, -1.0);
    while (!done) at::log(negative);
  });
  std::vector<std::string> errors;
  for (int i = 0; i < 20; ++i) {
    auto devices = norm_net();
    auto loader = in_order(rows_with_inf(3, {1}));
    auto trainer =
        Trainer::create(*devices, AdamW({.lr = 1e-2}), {.max_epochs = 1, .grad_clip = 1, .log_every = 1}).value();
    const auto result = trainer.fit(*loader, [](NormNet& model, const Batch& batch) {
      return at::cross_entropy_loss(model->forward(batch["x"]), batch["y"]);
    });
    errors.push_back(error_line(result.status()));
  }
  done = true;
  other.join();
  for (const std::string& error : errors) CHECK_THAT(error, Catch::Contains("aten::addmm took inf, in 'hidden'"));
}

TEST_CASE("A rollback restores the weights of the last checkpoint and continues with other rows",
          "[train][nonfinite]") {
  const TempDir folder;
  auto devices = norm_net();
  auto loader = in_order(rows_with_inf(12, {6}));
  Watched watched;
  auto trainer = Trainer::create(*devices, AdamW({.lr = 1e-2}),
                                 {.max_epochs = 1,
                                  .on_nonfinite = OnNonfinite::kRollback,
                                  .log_every = 1,
                                  .save_every = 4,
                                  .output_dir = folder.path().string()})
                     .value();
  const auto result = trainer.fit(*loader, watching_loss(watched), {.logger = &watched});
  REQUIRE(result.status() == absl::OkStatus());
  CHECK(result->skipped_steps == 1);
  CHECK(result->steps == 9);  // 7 steps, back to 4, and the 5 remaining batches
  const auto found = std::find(watched.first_rows.begin(), watched.first_rows.end(), 7 * kBatch);
  REQUIRE(found != watched.first_rows.end());
  CHECK(equal(watched.before[found - watched.first_rows.begin()], watched.before[4]));
  CHECK_THAT(watched.lines, Catch::Contains("rolled back from step 7 to the weights of step 4"));
  const StateDict last = load_checkpoint_state(resolve_checkpoint("latest", folder.path()).value()).value();
  CHECK(get_state<std::vector<int64_t>>(last, "rows.counts").value() == std::vector<int64_t>{12 * kBatch});
}

TEST_CASE("Rollbacks to the same checkpoint end the run at max_nonfinite, but not those to later ones",
          "[train][nonfinite]") {
  const int64_t second = GENERATE(6, 9);  // batch 4 is step 5; from the checkpoint of step 4, batch 9 is step 9
  const TempDir folder;
  auto devices = norm_net();
  auto loader = in_order(rows_with_inf(12, {4, second}));
  Watched watched;
  auto trainer = Trainer::create(*devices, AdamW({.lr = 1e-2}),
                                 {.max_epochs = 1,
                                  .on_nonfinite = OnNonfinite::kRollback,
                                  .max_nonfinite = 2,
                                  .save_every = 4,
                                  .output_dir = folder.path().string()})
                     .value();
  const absl::Status status = trainer.fit(*loader, watching_loss(watched)).status();
  CHECK((status.ok() ? ExitCode::kOk : exit_code(status)) == (second == 6 ? ExitCode::kNumerics : ExitCode::kOk));
}

TEST_CASE("A rollback restores the best model too", "[train][nonfinite]") {
  const TempDir folder;
  const std::string dir = folder.path().string();
  auto devices = norm_net();
  auto loader = in_order(rows_with_inf(12, {6}));
  auto validation = in_order(rows_with_inf(2, {}));
  auto best = BestModel::open(dir, "", {.metric = "score", .higher_is_better = true}).value();
  std::vector<double> scores = {0.1, 0.9, 0.5,
                                0.3};  // of steps 3 and 6; of step 6 again after the rollback from 7 to 4; of step 9
  std::vector<int64_t> steps;
  auto trainer = Trainer::create(*devices, AdamW({.lr = 1e-2}),
                                 {.max_epochs = 1,
                                  .on_nonfinite = OnNonfinite::kRollback,
                                  .eval_every = 3,
                                  .save_every = 4,
                                  .output_dir = dir,
                                  .monitor = "score",
                                  .monitor_higher_is_better = true})
                     .value();
  Watched watched;
  const auto on_evaluation = [&](int64_t step, Metrics& metrics) {
    REQUIRE(steps.size() < scores.size());
    metrics["score"] = scores[steps.size()];
    steps.push_back(step);
    REQUIRE(best.offer(step, metrics["score"], *devices->module()).ok());
  };
  const auto result =
      trainer.fit(*loader, watching_loss(watched), {.validation = validation.get(), .on_evaluation = on_evaluation});
  REQUIRE(result.status() == absl::OkStatus());
  REQUIRE(steps == std::vector<int64_t>{3, 6, 6, 9});
  CHECK(result->best_step == 6);
  CHECK(result->best_evaluation.at("score") == 0.5);
  CHECK(best.step() == 6);
  CHECK(best.value() == 0.5);
}

TEST_CASE("Non-finite parameters and losses are reported by name", "[train][nonfinite]") {
  auto devices = norm_net();
  const auto run = [&](auto loss) {
    auto loader = in_order(rows_with_inf(3, {}));
    auto trainer =
        Trainer::create(*devices, AdamW({.lr = 1e-2}), {.max_epochs = 1, .grad_clip = 1, .log_every = 1}).value();
    return error_line(trainer.fit(*loader, loss).status());
  };
  CHECK_THAT(run([](NormNet& model, const Batch& batch) { return (model->forward(batch["x"]) * 0 - 1).sqrt().sum(); }),
             Catch::Contains("step 1: aten::sqrt after 'out' returned nan"));
  // Finite in forward, infinite in backward.
  CHECK_THAT(run([](NormNet& model, const Batch& batch) { return (model->forward(batch["x"]) * 0).sqrt().sum(); }),
             Catch::Contains("step 1: the loss is finite, but the gradient of bias of 'out' is not finite"));
  CHECK_THAT(run([](NormNet& model, const Batch& batch) { return (model->forward(batch["x"]) * 0 - 1).log().sum(); }),
             Catch::Contains("loss: is not finite at step 1: aten::log, or an operation after it, after 'out' returned "
                             "nan"));
  devices->module()->named_parameters()["out.bias"].data()[1] = NAN;
  CHECK_THAT(run([](NormNet& model, const Batch& batch) { return model->forward(batch["x"]).square().sum(); }),
             Catch::Contains("step 1: bias of 'out' is not finite"));
}
