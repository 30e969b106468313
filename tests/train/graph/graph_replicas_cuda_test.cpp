// DataParallel's step on two GPUs as one CUDA graph, on simulated devices.
#include "cuda_sim/cuda_sim_control.h"
#include "train/gpu_training.h"

#ifdef TRAINKIT_WITH_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#endif

using namespace trainkit;
using namespace trainkit::test;

#ifndef TRAINKIT_WITH_CUDA

TEST_CASE("DataParallel's step as one CUDA graph", "[train][graph_replicas_cuda]") {
  TRAINKIT_SKIP("this build is without CUDA");
}

#else

namespace {

const DeviceReplicatorOptions kTwoGpus{
    .strategy = Strategy::kDataParallel, .device = at::kCUDA, .gpu_ids = {0, 1}, .first_bucket_bytes = 1 << 10};
constexpr std::array kShardingsOfReplicas = {Sharding::kNone, Sharding::kOptimizer, Sharding::kGradients};

/// Rows whose parts are on the GPUs, as a Prefetcher copies them ahead.
Batch divided_batch(int64_t rows, uint64_t seed, bool broken = false, int8_t gpus = 2) {
  const Batch host = random_batch(rows, seed);
  if (broken) host["x"][0][0] = std::numeric_limits<float>::infinity();
  auto content = std::make_shared<Batch::Content>(*host.content());
  for (int8_t i = 0; i < gpus; ++i) content->shards.push_back(host.shard(i, gpus, at::Device(at::kCUDA, i)).content());
  return Batch(std::move(content));
}

std::vector<at::Tensor> state_of_replicas(const GpuTraining& training) {
  std::vector<at::Tensor> all;
  const auto add = [&](const at::Tensor& tensor) { all.push_back(tensor.detach().cpu()); };
  for (const at::Tensor& tensor : training.state()) add(tensor);
  for (int64_t copy = 0; copy < training.devices->replicas(); ++copy) {
    for (const at::Tensor& tensor : training.devices->module(copy)->parameters()) add(tensor);
    for (const at::Tensor& tensor : training.devices->module(copy)->buffers()) add(tensor);
    for (const auto& [name, average] : training.step->averages(copy)) add(average);
    for (const auto& [name, value] : training.step->optimizers()[static_cast<size_t>(copy)]->state_dict()) {
      if (const auto* tensor = std::get_if<at::Tensor>(&value)) add(*tensor);
    }
    add(torch::rand({4}, training.devices->device(copy)));
  }
  return all;
}

bool all_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) { return same(x, y); });
}

struct TrainedReplicas {
  std::vector<double> losses;
  std::vector<at::Tensor> state;
  int64_t graphs = 0, captures = 0;
  std::string reason;
  uint64_t calls = 0;  // of the runtime in captures
};

uint64_t capture_calls() { return cuda_sim_counts()["capture_calls"].get<uint64_t>(); }

TrainedReplicas train(CudaGraph graph, const TrainStepOptions& options, uint64_t steps, Sharding sharding,
                      uint64_t failing = 0, int8_t gpus = 2) {
  const uint64_t before = capture_calls();
  const CudaSimSetting setting("FAIL_CAPTURE", std::to_string(failing > 0 ? before + failing : 0));
  DeviceReplicatorOptions placing = kTwoGpus;
  placing.sharding = sharding;
  placing.bucket_bytes = 1 << 10;
  if (gpus == 3) placing.gpu_ids = {0, 1, 2};
  GpuTraining training(graph, options, 8, placing);
  torch::manual_seed(5);
  TrainedReplicas outcome;
  for (uint64_t i = 0; i < steps; ++i) {
    std::vector<Batch> batches;
    for (int64_t part = 0; part < options.grad_accum_steps; ++part) {
      const bool broken = i == 20 && (options.skip_nonfinite || options.precision == Precision::kFp16);
      batches.push_back(divided_batch(i % 16 == 15 ? 9 : 16, 10 * i + static_cast<uint64_t>(part), broken, gpus));
    }
    outcome.losses.push_back(training.run(batches).loss.item<double>());
  }
  outcome.state = state_of_replicas(training);
  outcome.graphs = training.step->graph_steps();
  outcome.captures = training.step->graph_captures();
  outcome.reason = training.step->graph_reason();
  outcome.calls = capture_calls() - before;
  return outcome;
}

void check_as_eager(const TrainStepOptions& options, Sharding sharding, int8_t gpus) {
  constexpr uint64_t kSteps = 50;
  const TrainedReplicas eager = train(CudaGraph::kOff, options, kSteps, sharding, 0, gpus);
  const TrainedReplicas graph = train(CudaGraph::kOn, options, kSteps, sharding, 0, gpus);
  INFO(graph.reason);
  CHECK(graph.graphs == kSteps - 4 - 3);  // two warm-up steps, two that are compared, three batches of other shapes
  CHECK(graph.captures == 1);
  for (size_t step = 0; step < kSteps; ++step) {
    INFO("step " << step);
    CHECK((graph.losses[step] == eager.losses[step] || (std::isnan(graph.losses[step]) && step == 20)));
  }
  CHECK(all_equal(graph.state, eager.state));
}

}  // namespace

#define NEEDS_SIM \
  if (!has_cuda_sim()) TRAINKIT_SKIP("needs the simulated device")

TEST_CASE("One CUDA graph of two GPUs has the bits of eager steps", "[train][graph_replicas_cuda]") {
  NEEDS_SIM;
  const std::vector<TrainStepOptions> all = {
      {.grad_clip = 0.5, .skip_nonfinite = true, .ema_decay = 0.9},
      {.precision = Precision::kFp16, .grad_clip = 0.5, .scaler = {.growth_interval = 10}, .ema_decay = 0.9},
      {.precision = Precision::kBf16, .grad_accum_steps = 2}};
  for (size_t i = 0; i < all.size(); ++i) {
    for (const Sharding sharding : kShardingsOfReplicas) {
      INFO("options " << i << ", sharding " << static_cast<int>(sharding));
      check_as_eager(all[i], sharding, 2);
    }
  }
  CHECK(take_cuda_sim_findings().empty());
}

TEST_CASE("One CUDA graph of three GPUs that divide the training state has the bits of eager steps",
          "[train][graph_replicas_cuda]") {
  NEEDS_SIM;
  if (torch::cuda::device_count() < 3) TRAINKIT_SKIP("needs three GPUs");
  for (const Sharding sharding : {Sharding::kOptimizer, Sharding::kGradients}) {
    check_as_eager({.grad_accum_steps = 2, .grad_clip = 0.5, .skip_nonfinite = true}, sharding, 3);
  }
  CHECK(take_cuda_sim_findings().empty());
}

TEST_CASE("One CUDA graph of two GPUs whose SyncBatchNorm layers wait for each other has the bits of eager steps",
          "[train][graph_replicas_cuda]") {
  NEEDS_SIM;
  for (const Sharding sharding : kShardingsOfReplicas) {
    INFO("sharding " << static_cast<int>(sharding));
    const auto train = [&](CudaGraph graph, int64_t graphs) {
      torch::manual_seed(1);
      DeviceReplicatorOptions placing = kTwoGpus;
      placing.sync_batch_norm = true;
      placing.sharding = sharding;
      const auto devices = DeviceReplicator::create([] { return SyncNormNet(); }, placing).value();
      AdamW optimizer({.lr = 1e-2, .capturable = true});
      TrainStep step(*devices, optimizer, {.grad_accum_steps = 2, .cuda_graph = graph});
      const LossFunction loss = make_loss_function(loss_and_hits<SyncNormNet>);
      std::vector<at::Tensor> results;
      for (uint64_t i = 0; i < 12; ++i) {
        for (const uint64_t part : {0, 1}) step.accumulate(divided_batch(i == 9 ? 5 : 16, 10 * i + part), loss);
        results.push_back(step.finish().loss.cpu());
      }
      INFO(step.graph_reason());
      CHECK(step.graph_steps() == graphs);
      for (int64_t copy = 0; copy < 2; ++copy) {
        for (const at::Tensor& tensor : devices->module(copy)->parameters()) results.push_back(tensor.detach().cpu());
        for (const at::Tensor& tensor : devices->module(copy)->buffers()) results.push_back(tensor.cpu());
      }
      return results;
    };
    CHECK(all_equal(train(CudaGraph::kOn, 12 - 4 - 1), train(CudaGraph::kOff, 0)));
  }
  CHECK(take_cuda_sim_findings().empty());
}

TEST_CASE(
    "One CUDA graph of two GPUs is captured again when modes or frozen layers change, with the bits of eager steps",
    "[train][graph_replicas_cuda]") {
  NEEDS_SIM;
  const auto train = [](CudaGraph graph) {
    GpuTraining training(graph, {}, 8, kTwoGpus);
    auto* net = training.devices->module()->as<BatchNormNet>();
    for (uint64_t i = 0; i < 24; ++i) {
      if (i == 8) net->norm->eval();
      if (i == 16) net->hidden->weight.set_requires_grad(false);
      training.run({divided_batch(16, i)});
    }
    INFO(training.step->graph_reason());
    CHECK(training.step->graph_captures() == (graph == CudaGraph::kOn ? 3 : 0));
    CHECK_FALSE(training.devices->module(1)->as<BatchNormNet>()->norm->is_training());
    CHECK_FALSE(training.devices->module(1)->as<BatchNormNet>()->hidden->weight.requires_grad());
    return state_of_replicas(training);
  };
  torch::manual_seed(5);
  const std::vector<at::Tensor> eager = train(CudaGraph::kOff);
  torch::manual_seed(5);
  CHECK(all_equal(train(CudaGraph::kOn), eager));
  CHECK(take_cuda_sim_findings().empty());
}

TEST_CASE("A capture on two GPUs that fails at any call leaves the bits and the memory of eager steps",
          "[train][graph_replicas_cuda]") {
  NEEDS_SIM;
  const TrainStepOptions options{.precision = Precision::kFp16, .grad_clip = 0.5};
  constexpr uint64_t kSteps = 8;
  const auto private_segments = [] {
    c10::cuda::CUDACachingAllocator::emptyCache();
    const auto snapshot = c10::cuda::CUDACachingAllocator::snapshot();
    return std::count_if(snapshot.segments.begin(), snapshot.segments.end(), [](const auto& segment) {
      return segment.owner_private_pool_id != c10::MempoolId_t{0, 0};
    });
  };
  const uint64_t stride = is_full() ? 1 : 11;
  for (const Sharding sharding : kShardingsOfReplicas) {
    const auto run = [&](CudaGraph graph, uint64_t failing) {
      return train(graph, options, kSteps, sharding, failing);
    };
    const TrainedReplicas graph = run(CudaGraph::kOn, 0), eager = run(CudaGraph::kOff, 0);
    REQUIRE(graph.captures == 1);
    REQUIRE(graph.calls > 50);
    for (uint64_t call = 1; call <= graph.calls; call += stride) {
      INFO("sharding " << static_cast<int>(sharding) << ", call " << call << " of " << graph.calls);
      const TrainedReplicas failed = run(CudaGraph::kOn, call);
      CHECK(failed.captures == 0);
      CHECK_THAT(failed.reason, Catch::StartsWith("a step cannot be captured: "));
      CHECK(failed.losses == eager.losses);
      CHECK(all_equal(failed.state, eager.state));
      CHECK(private_segments() == 0);
    }
    CHECK(run(CudaGraph::kOn, 0).losses == eager.losses);  // the next capture works
  }
  CHECK(take_cuda_sim_findings().empty());
}

TEST_CASE("Replicas without rows on their devices run eagerly", "[train][graph_replicas_cuda]") {
  NEEDS_SIM;
  GpuTraining training(CudaGraph::kAuto, {}, 8, kTwoGpus);
  for (uint64_t i = 0; i < 8; ++i) training.run({gpu_batch(16, i)});
  CHECK(training.step->graph_steps() == 0);
  CHECK_THAT(training.step->graph_reason(), Catch::Contains("Prefetcher::use_devices"));
}

#endif
