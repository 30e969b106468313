// Exponential moving averages of the weights (TrainStepOptions::ema_decay).
#include <fstream>
#include <map>

#include "reference_util.h"
#include "train/loop_util.h"
#include "trainkit/io/safetensors.h"
#include "trainkit/optim/adam.h"
#include "trainkit/optim/sgd.h"
#include "trainkit/train/checkpoint.h"
#include "trainkit/train/trainer.h"
#include "trainkit/train/weights.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

at::Tensor flat(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> rows;
  for (const at::Tensor& tensor : tensors) rows.push_back(tensor.detach().reshape(-1));
  return torch::cat(rows);
}

at::Tensor flat(const NamedTensors& named) {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : named) tensors.push_back(tensor);
  return flat(tensors);
}

Batch tiny_batch(uint64_t seed, bool broken = false) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const at::Tensor x = at::randn({8, 8}, generator), y = x.slice(1, 0, 4).argmax(1);
  if (broken) x[0][0] = INFINITY;
  const auto fields = std::make_shared<const std::vector<FieldSpec>>(
      std::vector<FieldSpec>{{"x", at::kFloat, {8}}, {"y", at::kLong, {}}});
  return Batch(fields, {x, y});
}

std::unique_ptr<DeviceReplicator> tiny_net(const DeviceReplicatorOptions& options = {}) {
  torch::manual_seed(1);
  return DeviceReplicator::create([] { return TinyNet(0.0); }, options).value();
}

const LossFunction& loss() {
  static const LossFunction function = make_loss_function(tiny_loss);
  return function;
}

}  // namespace

TEST_CASE("The average has the bits of torch.optim.swa_utils.AveragedModel over 50 steps", "[train][ema]") {
  if (python().empty()) TRAINKIT_SKIP("TRAINKIT_PYTHON is not set");
  const TempDir dir;
  const auto devices = tiny_net();
  AdamW optimizer({.lr = 1e-2});
  TrainStep step(*devices, optimizer, {.ema_decay = 0.9});
  std::vector<at::Tensor> weights, averages;
  const auto current = [&] {
    std::vector<at::Tensor> all;
    for (const ParamGroup& group : optimizer.param_groups()) {
      for (const NamedParameter& parameter : group.params) all.push_back(parameter.tensor);
    }
    return flat(all).clone();
  };
  weights.push_back(current());
  for (uint64_t i = 0; i < 50; ++i) {
    step(tiny_batch(i), loss());
    weights.push_back(current());
    averages.push_back(flat(step.averages()).clone());
  }
  const at::Tensor rows = torch::stack(weights);
  std::ofstream(dir / "weights.bin", std::ios::binary)
      .write(reinterpret_cast<const char*>(rows.const_data_ptr<float>()), static_cast<std::streamsize>(rows.nbytes()));
  run_reference("averaged_model.py", dir.path().string() + " 0.9 " + std::to_string(rows.size(1)));
  at::Tensor python = torch::empty({50, rows.size(1)});
  std::ifstream file(dir / "averages.bin", std::ios::binary);
  file.read(reinterpret_cast<char*>(python.data_ptr<float>()), static_cast<std::streamsize>(python.nbytes()));
  REQUIRE(file.gcount() == static_cast<std::streamsize>(python.nbytes()));
  CHECK(torch::equal(torch::stack(averages), python));
  CHECK((python[49] - rows[50]).abs().max().item<double>() > 1e-3);  // and the average lags behind
}

TEST_CASE("A skipped step does not move the average", "[train][ema]") {
  const auto devices = tiny_net();
  AdamW optimizer({.lr = 1e-2});
  TrainStep step(*devices, optimizer, {.skip_nonfinite = true, .ema_decay = 0.9});
  for (uint64_t i = 0; i < 3; ++i) step(tiny_batch(i), loss());
  const at::Tensor before = flat(step.averages()).clone();
  const StepMetrics skipped = step(tiny_batch(3, /*broken=*/true), loss());
  REQUIRE(skipped.skipped_in_a_row.item<double>() == 1);
  CHECK(torch::equal(flat(step.averages()), before));
  step(tiny_batch(4), loss());
  CHECK_FALSE(torch::equal(flat(step.averages()), before));
}

TEST_CASE("Weights and averages are exchanged in every replica, and back with equal bits", "[train][ema]") {
  const auto devices = tiny_net({.cpu_replicas = 2, .share_weights = false}), alone = tiny_net();
  AdamW optimizer({.lr = 1e-2}), other({.lr = 1e-2});
  TrainStep step(*devices, optimizer, {.ema_decay = 0.8}), single(*alone, other, {.ema_decay = 0.8});
  for (uint64_t i = 0; i < 10; ++i) step(tiny_batch(i), loss()), single(tiny_batch(i), loss());
  const at::Tensor weights = flat(devices->module()->parameters()).clone();
  const at::Tensor averages = flat(step.averages()).clone();
  CHECK(torch::allclose(averages, flat(single.averages()), 1e-4, 1e-5));
  step.swap_averages();
  CHECK_FALSE(torch::equal(flat(devices->module()->parameters()), weights));
  CHECK(torch::equal(flat(devices->module(1)->parameters()), flat(devices->module()->parameters())));
  step.swap_averages();
  CHECK(torch::equal(flat(devices->module()->parameters()), weights));
  CHECK(torch::equal(flat(devices->module(1)->parameters()), weights));
  CHECK(torch::equal(flat(step.averages()), averages));
}

TEST_CASE("Without a decay there is no average, and a decay out of range is an error", "[train][ema]") {
  const auto devices = tiny_net();
  AdamW optimizer({.lr = 1e-2});
  TrainStep step(*devices, optimizer);
  CHECK(step.averages().empty());
  step.swap_averages();
  for (const double decay : {-0.1, 1.0}) {
    AdamW fresh({.lr = 1e-2});
    CHECK_THROWS_WITH(TrainStep(*devices, fresh, {.ema_decay = decay}), Catch::Contains("ema_decay must be in [0, 1)"));
    CHECK_FALSE(Trainer::create(*devices, AdamW(), {.max_steps = 1, .ema_decay = decay}).ok());
  }
}

TEST_CASE("The averages are evaluated, saved as the model and left in it; a resumed run continues with equal bits",
          "[train][ema][resume]") {
  const TempDir dir;
  struct Run {
    at::Tensor weights;
    TrainerResult result;
    std::vector<at::Tensor> evaluated;  // weights in each evaluation
  };
  const auto train = [&](const std::string& name, int64_t steps, double decay, const std::string& resume = "") {
    torch::manual_seed(11);
    const auto devices = DeviceReplicator::create([] { return TinyNet(); }).value();
    const auto loader = Prefetcher::create(tiny_dataset(52), RandomSampler(52, {.seed = 3}), {.batch_size = 4}).value();
    const auto validation = Prefetcher::create(tiny_dataset(16), SequentialSampler(16), {.batch_size = 8}).value();
    auto trainer = Trainer::create(*devices, AdamW({.lr = 1e-2}),
                                   {.max_steps = steps,
                                    .grad_clip = 1.0,
                                    .ema_decay = decay,
                                    .eval_every = 5,
                                    .save_every = 10,
                                    .output_dir = dir / name,
                                    .resume = resume})
                       .value();
    Run run;
    const auto note = [&](int64_t, Metrics&) {
      run.evaluated.push_back(flat(devices->module()->parameters()).clone());
    };
    run.result = trainer.fit(*loader, loss(), {.validation = validation.get(), .on_evaluation = note}).value();
    run.weights = flat(devices->module()->parameters()).clone();
    return run;
  };
  const Run whole = train("whole", 30, 0.9);
  train("stopped", 10, 0.9);
  const Run resumed = train("stopped", 30, 0.9, "latest");
  CHECK(torch::equal(resumed.weights, whole.weights));
  CHECK(resumed.result.evaluation == whole.result.evaluation);
  CHECK(resumed.result.best_evaluation == whole.result.best_evaluation);
  CHECK(torch::equal(whole.evaluated.back(), whole.weights));
  const Run plain = train("plain", 30, 0);
  CHECK_FALSE(torch::equal(plain.weights, whole.weights));
  // The checkpoint has the averages as the model, and the trained weights, which equal those of the plain run.
  const CheckpointPath path{.folder = dir / "whole" + "/checkpoints", .step = 30};
  const CheckpointContents contents = load_checkpoint(path).value();
  const std::map<std::string, at::Tensor> model(contents.model.begin(), contents.model.end());
  const std::map<std::string, at::Tensor> others(contents.optimizer.begin(), contents.optimizer.end());
  std::vector<at::Tensor> saved, live;
  for (const auto& parameter : TinyNet()->named_parameters()) {
    saved.push_back(model.at(parameter.key()));
    live.push_back(others.at("live." + parameter.key()));
  }
  CHECK(torch::equal(flat(saved), whole.weights));
  CHECK(torch::equal(flat(live), plain.weights));
  // A run continued without averages takes the trained weights; one continued with them from a checkpoint without
  // starts to average there.
  CHECK(torch::equal(train("whole", 40, 0, "latest").weights, train("plain", 40, 0, "latest").weights));
  const Run started = train("plain", 41, 0.5, "latest");
  CHECK(started.result.steps == 41);
}
