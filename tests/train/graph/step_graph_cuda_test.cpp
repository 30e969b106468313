// A step as a CUDA graph on a GPU: the bits of the eager step, and neither synchronises with the device.
#include "core/device/late_scalars.h"
#include "train/gpu_training.h"
#include "train/loop_util.h"
#include "trainkit/core/status.h"
#include "trainkit/data/sampler.h"
#include "trainkit/nn/transformer.h"
#include "trainkit/train/trainer.h"

#ifdef TRAINKIT_WITH_CUDA
#include <c10/cuda/CUDAFunctions.h>
#endif

using namespace trainkit;
using namespace trainkit::test;

#ifndef TRAINKIT_WITH_CUDA

TEST_CASE("A CUDA graph has the bits of the eager step", "[train][step_graph_cuda]") {
  TRAINKIT_SKIP("this build is without CUDA");
}

#else

namespace {

/// Makes every synchronisation with the device an error during its lifetime.
class NoWaiting {
 public:
  NoWaiting() { c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR); }
  ~NoWaiting() { c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED); }
};

/// Compares the bits of 50 steps: one is not finite, three have fewer rows. Both ways draw the same random numbers.
void expect_same(const TrainStepOptions& options) {
  std::vector<std::vector<StepMetrics> > metrics(2);
  std::vector<std::vector<at::Tensor> > states;
  for (const CudaGraph graph : {CudaGraph::kOff, CudaGraph::kOn}) {
    GpuTraining training(graph, options);
    torch::manual_seed(5);
    for (int i = 0; i < 50; ++i) {
      std::vector<Batch> batches;
      for (int64_t part = 0; part < options.grad_accum_steps; ++part) {
        batches.push_back(gpu_batch(i % 16 == 15 ? 17 : 32, static_cast<uint64_t>(10 * i + part), i == 20));
      }
      metrics[graph == CudaGraph::kOn].push_back(training.run(batches));
    }
    states.push_back(training.state());
    if (graph == CudaGraph::kOff) continue;
    INFO(training.step->graph_reason());
    CHECK(training.step->graph_captures() == 1);
    CHECK(training.step->graph_steps() == 50 - 3 - 3);
  }
  for (size_t i = 0; i < 50; ++i) {
    INFO(i);
    CHECK(same(metrics[0][i].loss, metrics[1][i].loss));
    CHECK(same(metrics[0][i].grad_norm, metrics[1][i].grad_norm));
    CHECK(same(metrics[0][i].skipped_in_a_row, metrics[1][i].skipped_in_a_row));
    CHECK(same(metrics[0][i].metrics[0].second, metrics[1][i].metrics[0].second));
  }
  for (size_t i = 0; i < states[0].size(); ++i) CHECK(same(states[0][i], states[1][i]));
}

}  // namespace

TEST_CASE("A CUDA graph has the bits of the eager step: float32, clipping, a skipped step",
          "[train][step_graph_cuda]") {
  NEEDS_GPU;
  expect_same({.grad_clip = 0.5, .skip_nonfinite = true});
}

TEST_CASE("A CUDA graph has the bits of the eager step: float16 with a scaler", "[train][step_graph_cuda]") {
  NEEDS_GPU;
  expect_same({.precision = Precision::kFp16, .grad_clip = 0.5, .scaler = {.growth_interval = 10}});
}

TEST_CASE("A CUDA graph has the bits of the eager step: an average of the weights, a skipped step",
          "[train][step_graph_cuda]") {
  NEEDS_GPU;
  expect_same({.grad_clip = 0.5, .skip_nonfinite = true, .ema_decay = 0.9});
  expect_same({.precision = Precision::kFp16, .scaler = {.growth_interval = 10}, .ema_decay = 0.9});
}

TEST_CASE("An average on a GPU equals that of the CPU's foreach operation, and a skipped step does not move it",
          "[train][step_graph_cuda]") {
  NEEDS_GPU;
  GpuTraining training(CudaGraph::kOff, {.skip_nonfinite = true, .ema_decay = 0.9});
  std::vector<at::Tensor> expected;
  for (const auto& [name, average] : training.step->averages()) expected.push_back(average.cpu());
  for (int i = 0; i < 20; ++i) {
    const bool broken = i % 5 == 2;
    training.run({gpu_batch(32, static_cast<uint64_t>(i), broken)});
    size_t at = 0;
    for (const ParamGroup& group : training.optimizer.param_groups()) {
      for (const NamedParameter& parameter : group.params) {
        if (!broken) expected[at].lerp_(parameter.tensor.detach().cpu(), 1 - 0.9);
        ++at;
      }
    }
  }
  const NamedTensors averages = training.step->averages();
  for (size_t i = 0; i < averages.size(); ++i)
    CHECK(torch::allclose(averages[i].second.cpu(), expected[i], 1e-6, 1e-7));
}

TEST_CASE("A CUDA graph has the bits of the eager step: bfloat16, accumulation, gradients kept",
          "[train][step_graph_cuda]") {
  NEEDS_GPU;
  expect_same(
      {.precision = Precision::kBf16, .grad_accum_steps = 2, .zero_grad_set_to_none = false, .skip_nonfinite = true});
}

TEST_CASE("A CUDA graph of a Transformer has the bits of the eager step, whichever random numbers its attention draws",
          "[train][step_graph_cuda]") {
  NEEDS_GPU;
  const auto fields = std::make_shared<const std::vector<FieldSpec> >(
      std::vector<FieldSpec>{{"x", at::kLong, {8}}, {"y", at::kLong, {8}}});
  const LossFunction loss = make_loss_function([](Transformer& model, const Batch& batch) {
    return language_model_loss(model->forward(batch["x"]), batch["y"]);
  });
  const auto train = [&](CudaGraph graph, Precision precision, double dropout) {
    torch::manual_seed(1);
    const auto make = [&] {
      return Transformer(TransformerConfig{
          .vocab_size = 11, .block_size = 8, .n_layers = 1, .n_heads = 2, .hidden_dim = 16, .dropout = dropout});
    };
    const auto devices = DeviceReplicator::create(make, {.device = kGpu}).value();
    AdamW optimizer({.lr = 1e-2, .capturable = true});
    TrainStep step(*devices, optimizer, {.precision = precision, .grad_clip = 0.5, .cuda_graph = graph});
    std::vector<double> losses;
    for (int i = 0; i < 12; ++i) {
      const at::Tensor ids = at::remainder(torch::arange(4 * 9).view({4, 9}) * (i + 2), 11);
      losses.push_back(
          step(Batch(fields, {ids.narrow(1, 0, 8).contiguous(), ids.narrow(1, 1, 8).contiguous()}).to(kGpu), loss)
              .loss.item<double>());
    }
    INFO(step.graph_reason());
    CHECK(step.graph_steps() == (graph == CudaGraph::kOff ? 0 : 9));
    return std::pair(losses, devices->module()->parameters());
  };
  for (const Precision precision : {Precision::kFp32, Precision::kBf16, Precision::kFp16}) {
    for (const double dropout : {0.0, 0.2}) {
      INFO("precision " << static_cast<int>(precision) << ", dropout " << dropout);
      const auto eager = train(CudaGraph::kOff, precision, dropout), graph = train(CudaGraph::kOn, precision, dropout);
      CHECK(eager.first == graph.first);
      for (size_t i = 0; i < eager.second.size(); ++i) CHECK(same(eager.second[i], graph.second[i]));
    }
  }
}

TEST_CASE("No step synchronises with the device, captured or eager, even when its metrics are read late",
          "[train][step_graph_cuda]") {
  NEEDS_GPU;
  for (const CudaGraph graph : {CudaGraph::kOff, CudaGraph::kOn}) {
    for (const Precision precision : {Precision::kFp32, Precision::kBf16, Precision::kFp16}) {
      GpuTraining training(graph, {.precision = precision, .grad_clip = 0.5, .skip_nonfinite = true});
      std::vector<Batch> batches;
      for (uint64_t i = 0; i < 30; ++i) batches.push_back(gpu_batch(32, i));
      for (size_t i = 0; i < 10; ++i) training.run({batches[i]});
      CHECK((training.step->graph_steps() > 0) == (graph == CudaGraph::kOn));
      std::vector<LateScalars> late;
      {
        const NoWaiting watch;
        CHECK_THROWS(training.optimizer.step_count().item<float>());  // the guard detects a synchronisation
        for (size_t i = 10; i < 30; ++i) {
          const StepMetrics metrics = training.run({batches[i]});
          late.emplace_back(std::vector{metrics.loss, metrics.grad_norm, metrics.skipped_in_a_row});
        }
      }
      for (const LateScalars& scalars : late) CHECK(std::isfinite(scalars.values()[0]));
    }
  }
}

TEST_CASE("Metrics of a captured step stay unchanged after the next step has run", "[train][step_graph_cuda]") {
  NEEDS_GPU;
  GpuTraining training(CudaGraph::kOn, {});
  for (uint64_t i = 0; i < 6; ++i) training.run({gpu_batch(32, i)});
  const StepMetrics metrics = training.run({gpu_batch(32, 50)});
  const double before = metrics.loss.item<double>();
  for (uint64_t i = 0; i < 3; ++i) training.run({gpu_batch(32, i)});
  CHECK(metrics.loss.item<double>() == before);
}

TEST_CASE("Steps run eagerly with the same bits after CUDA aborts a capture, and log the reason",
          "[train][step_graph_cuda]") {
  NEEDS_GPU;
  std::vector<std::vector<at::Tensor> > states;
  for (const bool waits : {false, true}) {
    GpuTraining training(waits ? CudaGraph::kOn : CudaGraph::kOff, {});
    int calls = 0;
    const LossFunction loss = [&](torch::nn::Module& module, const Batch& batch) -> LossOutput {
      if (++calls >= 4 && waits && calls < 5) c10::cuda::device_synchronize();  // not a LibTorch operation: not traced
      return training.loss(module, batch);
    };
    torch::manual_seed(5);
    for (uint64_t i = 0; i < 10; ++i) (*training.step)(gpu_batch(32, i), loss);
    if (waits) {
      CHECK(training.step->graph_captures() == 0);
      CHECK_THAT(training.step->graph_reason(), Catch::StartsWith("a step cannot be captured: "));
      CHECK(training.step->graph_reason().find('\n') == std::string::npos);
    }
    states.push_back(training.state());
  }
  for (size_t i = 0; i < states[0].size(); ++i) CHECK(same(states[0][i], states[1][i]));
}

TEST_CASE("A Trainer captures its steps, logs it, and gives the bits of eager steps", "[train][step_graph_cuda]") {
  NEEDS_GPU;
  struct Printed final : Logger {
    void log(const LogRecord& record) override { losses.push_back(record.values.at(0).second); }
    absl::Status flush() override { return absl::OkStatus(); }
    void print(std::string_view line) override { lines += std::string(line) + "\n"; }
    std::vector<double> losses;
    std::string lines;
  };
  Printed printed[2];
  std::vector<at::Tensor> weights[2];
  for (const bool captured : {false, true}) {
    torch::manual_seed(1);
    const auto devices = DeviceReplicator::create([] { return TinyNet(0); }, {.device = kGpu}).value();
    const PrefetcherOptions batches{.batch_size = 8, .device = kGpu};
    const auto loader = Prefetcher::create(tiny_dataset(96), RandomSampler(96, {.seed = 3}), batches).value();
    const auto validation = Prefetcher::create(tiny_dataset(8), SequentialSampler(8), batches).value();
    auto trainer = Trainer::create(*devices, AdamW({.lr = 1e-2, .capturable = true}),
                                   {.max_epochs = 3,
                                    .grad_accum_steps = 2,
                                    .cuda_graph = captured ? CudaGraph::kAuto : CudaGraph::kOff,
                                    .schedule = create_schedule({.name = "cosine", .total_steps = 18}).value(),
                                    .log_every = 1,
                                    .eval_every = 7})
                       .value();
    const auto result = trainer.fit(*loader, tiny_loss, {.validation = validation.get(), .logger = &printed[captured]});
    REQUIRE(result.status() == absl::OkStatus());
    CHECK(result->steps == 18);
    CHECK(result->graph_steps == (captured ? 15 : 0));
    for (const at::Tensor& weight : devices->module()->parameters()) weights[captured].push_back(weight.cpu());
  }
  CHECK(printed[0].losses == printed[1].losses);
  CHECK(printed[0].lines.find("CUDA graph") == std::string::npos);
  CHECK_THAT(printed[1].lines, Catch::Contains("steps run as one CUDA graph from step 4 on"));
  for (size_t i = 0; i < weights[0].size(); ++i) CHECK(torch::equal(weights[0][i], weights[1][i]));
}

TEST_CASE("A run of captured steps that is stopped and resumed has the bits of an uninterrupted run",
          "[train][step_graph_cuda]") {
  NEEDS_GPU;
  const TempDir dir;
  const auto run = [&](const std::string& folder, int64_t steps, const std::string& resume, CudaGraph graph) {
    torch::manual_seed(1);
    auto devices = DeviceReplicator::create([] { return TinyNet(); }, {.device = kGpu}).value();
    auto loader = Prefetcher::create(tiny_dataset(160), RandomSampler(160, {.seed = 3}),
                                     {.batch_size = 8, .num_workers = 2, .device = kGpu})
                      .value();
    auto trainer = Trainer::create(*devices, AdamW({.lr = 1e-3, .capturable = true}),
                                   {.max_epochs = 0,
                                    .max_steps = steps,
                                    .grad_clip = 1,
                                    .cuda_graph = graph,
                                    .schedule = create_schedule({.name = "cosine", .total_steps = 60}).value(),
                                    .save_every = 30,
                                    .output_dir = folder,
                                    .resume = resume})
                       .value();
    const auto result = trainer.fit(*loader, tiny_loss);
    REQUIRE(result.status() == absl::OkStatus());
    CHECK((result->graph_steps > 0) == (graph == CudaGraph::kOn));
    std::vector<at::Tensor> weights;
    for (const auto& parameter : devices->module()->parameters()) weights.push_back(parameter.detach().cpu());
    return weights;
  };
  const auto whole = run(dir / "whole", 60, "", CudaGraph::kOn), eager = run(dir / "eager", 60, "", CudaGraph::kOff);
  run(dir / "parts", 30, "", CudaGraph::kOn);
  const auto parts = run(dir / "parts", 60, "latest", CudaGraph::kOn);
  for (size_t i = 0; i < whole.size(); ++i) {
    CHECK(torch::equal(whole[i], eager[i]));
    CHECK(torch::equal(whole[i], parts[i]));
  }
}

#endif
