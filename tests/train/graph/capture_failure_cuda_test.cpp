// A step whose capture fails on the simulated device. The test chooses the runtime call that fails.
#include "cuda_sim/cuda_sim_control.h"
#include "train/gpu_training.h"

#ifdef TRAINKIT_WITH_CUDA
#include <ATen/core/CachingHostAllocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#endif

using namespace trainkit;
using namespace trainkit::test;

#ifndef TRAINKIT_WITH_CUDA

TEST_CASE("A capture that fails leaves nothing behind", "[train][capture_failure_cuda]") {
  TRAINKIT_SKIP("this build is without CUDA");
}

#else

namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

constexpr int kSteps = 7;

struct Trained {
  std::vector<double> losses;
  std::vector<at::Tensor> state;
  at::Tensor drawn;  // after the steps
  std::string reason;
  int64_t captures = 0;
  uint64_t calls = 0;  // runtime calls during the capture
  size_t private_pools = 0;
  size_t reserved = 0;  // after the training
};

uint64_t calls_in_captures() { return cuda_sim_counts()["capture_calls"].get<uint64_t>(); }

/// Segments of the allocator that belong to captures.
size_t count_private_segments() {
  size_t count = 0;
  for (const auto& segment : allocator::snapshot().segments) {
    if (segment.owner_private_pool_id != c10::MempoolId_t{0, 0}) ++count;
  }
  return count;
}

/// Trains a few steps with dropout, clipping and, in fp16, a scaler. If `failing` > 0, that call of the first capture
/// fails.
Trained train(CudaGraph graph, uint64_t failing, Precision precision) {
  const uint64_t before = calls_in_captures();
  const CudaSimSetting setting("FAIL_CAPTURE", std::to_string(failing > 0 ? before + failing : 0));
  Trained outcome;
  {
    GpuTraining training(graph, {.precision = precision, .grad_clip = 0.5}, 8);
    torch::manual_seed(5);
    for (uint64_t i = 0; i < kSteps; ++i) outcome.losses.push_back(training.run({gpu_batch(8, i)}).loss.item<double>());
    for (const at::Tensor& tensor : training.state()) outcome.state.push_back(tensor.detach().cpu());
    outcome.drawn = torch::rand({4}, kGpu).cpu();
    outcome.reason = training.step->graph_reason();
    outcome.captures = training.step->graph_captures();
    outcome.calls = calls_in_captures() - before;
    allocator::emptyCache();
    outcome.private_pools = count_private_segments();
  }
  // What is left after the training: its own memory has a segment per stream, of which an eager run uses only one.
  allocator::emptyCache();
  outcome.reserved = allocator::getDeviceStats(0).reserved_bytes[0].current;
  return outcome;
}

}  // namespace

TEST_CASE("A capture that fails at any call leaves the same bits, memory and random numbers as an eager run",
          "[train][capture_failure_cuda]") {
  if (!has_cuda_sim()) TRAINKIT_SKIP("needs the simulated device");
  const auto precision = GENERATE(Precision::kFp16, Precision::kFp32, Precision::kBf16);
  CAPTURE(static_cast<int>(precision));
  const uint64_t stride = precision == Precision::kFp16 || is_full() ? 1 : 7;
  const Trained captured = train(CudaGraph::kOn, 0, precision);  // after one-time setup
  const Trained eager = train(CudaGraph::kOff, 0, precision);
  REQUIRE(captured.captures == 1);
  CHECK(captured.losses == eager.losses);
  REQUIRE(captured.calls > 30);
  for (uint64_t call = 1; call <= captured.calls; call += stride) {
    INFO("call " << call);
    const Trained failed = train(CudaGraph::kOn, call, precision);
    CHECK(failed.captures == 0);
    CHECK_THAT(failed.reason, Catch::StartsWith("a step cannot be captured: "));
    CHECK(failed.losses == eager.losses);
    for (size_t i = 0; i < eager.state.size(); ++i) CHECK(same(failed.state[i], eager.state[i]));
    CHECK(torch::equal(failed.drawn, eager.drawn));
    CHECK(failed.private_pools == 0);
    CHECK(failed.reserved == eager.reserved);
  }
  CHECK(train(CudaGraph::kOn, 0, precision).losses == eager.losses);  // the next capture works
  CHECK(take_cuda_sim_findings().empty());
}

TEST_CASE("Out of memory at any allocation of captured steps gives the bits of eager steps",
          "[train][capture_failure_cuda]") {
  if (!has_cuda_sim()) TRAINKIT_SKIP("needs the simulated device");
  const auto run = [](CudaGraph graph, uint64_t fault, uint64_t& allocations) {
    const auto count = [] { return cuda_sim_counts()["mallocs"].get<uint64_t>(); };
    GpuTraining training(graph, {.precision = Precision::kBf16, .grad_clip = 0.5}, 8);
    torch::manual_seed(5);
    std::vector<Batch> batches;
    for (uint64_t i = 0; i < 8; ++i) batches.push_back(gpu_batch(8, i));
    allocator::emptyCache();  // so that the steps allocate
    const uint64_t before = count();
    {
      const CudaSimSetting setting("FAIL_MALLOC", std::to_string(fault > 0 ? before + fault : 0));
      for (const Batch& batch : batches) training.run({batch});
    }
    allocations = count() - before;
    CHECK(training.step->split() == 1);
    if (fault == 0) CHECK(training.step->graph_steps() == (graph == CudaGraph::kOff ? 0 : 5));
    std::vector<at::Tensor> state;
    for (const at::Tensor& tensor : training.state()) state.push_back(tensor.detach().cpu());
    state.push_back(torch::rand({4}, kGpu).cpu());
    return state;
  };
  uint64_t count = 0, unused = 0;
  const auto eager = run(CudaGraph::kOff, 0, unused);
  run(CudaGraph::kOn, 0, count);
  REQUIRE(count > 0);
  for (uint64_t fault = 1; fault <= count; ++fault) {
    INFO("allocation " << fault << " of " << count);
    const auto state = run(CudaGraph::kOn, fault, unused);
    for (size_t i = 0; i < eager.size(); ++i) CHECK(same(state[i], eager[i]));
  }
  CHECK(take_cuda_sim_findings().empty());
}

TEST_CASE("A capture that fails leaves other graphs of the generator unchanged", "[train][capture_failure_cuda]") {
  if (!has_cuda_sim()) TRAINKIT_SKIP("needs the simulated device");
  std::vector<std::vector<double> > losses;
  for (const bool fails : {false, true}) {
    GpuTraining first(CudaGraph::kOn, {}, 8);
    torch::manual_seed(5);
    for (uint64_t i = 0; i < 5; ++i) first.run({gpu_batch(8, i)});
    REQUIRE(first.step->graph_steps() == 2);
    {
      const CudaSimSetting setting("FAIL_CAPTURE", std::to_string(fails ? calls_in_captures() + 20 : 0));
      GpuTraining second(CudaGraph::kOn, {}, 8);
      torch::manual_seed(6);
      for (uint64_t i = 0; i < 5; ++i) second.run({gpu_batch(8, i)});
      CHECK(second.step->graph_captures() == (fails ? 0 : 1));
    }
    losses.emplace_back();
    for (uint64_t i = 5; i < 10; ++i) {
      losses.back().push_back(first.run({gpu_batch(8, i)}).loss.item<double>());
      losses.back().push_back(torch::rand({}, kGpu).item<double>());
    }
    CHECK(first.step->graph_steps() == 7);
  }
  CHECK(losses[0] == losses[1]);
}

TEST_CASE("A capture that fails frees the page-locked memory that it allocated", "[train][capture_failure_cuda]") {
  NEEDS_GPU;
  at::HostAllocator* host = at::getHostAllocator(at::kCUDA);
  const auto kept = [&] {
    torch::cuda::synchronize();
    host->empty_cache();
    return host->get_stats().allocated_bytes.current;
  };
  GpuTraining training(CudaGraph::kOn, {}, 8);
  int calls = 0;
  const LossFunction loss = [&](torch::nn::Module& module, const Batch& batch) -> LossOutput {
    torch::empty({1 << 20}, at::TensorOptions(at::kByte).pinned_memory(true));
    if (++calls == 4) c10::cuda::device_synchronize();  // a call that invalidates any capture
    return training.loss(module, batch);
  };
  for (uint64_t i = 0; i < 3; ++i) (*training.step)(gpu_batch(8, i), loss);
  const int64_t before = kept();
  (*training.step)(gpu_batch(8, 3), loss);
  CHECK(calls == 5);
  CHECK_THAT(training.step->graph_reason(), Catch::StartsWith("a step cannot be captured: "));
  CHECK(kept() == before);
}

#endif
