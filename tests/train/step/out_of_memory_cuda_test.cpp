// TrainStep when the simulated device has no free memory. PYTORCH_NO_CUDA_MEMORY_CACHING=1 makes every tensor a device
// allocation.
#include <ATen/DeviceAccelerator.h>

#include <map>

#include "cuda_sim/cuda_sim_control.h"
#include "ranks.h"
#include "train/gpu_training.h"
#include "trainkit/core/status.h"

#ifdef TRAINKIT_WITH_CUDA
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <c10/cuda/CUDACachingAllocator.h>
#endif

using namespace trainkit;
using namespace trainkit::test;

#ifndef TRAINKIT_WITH_CUDA

TEST_CASE("Out of memory on a device", "[train][out_of_memory_cuda]") { TRAINKIT_SKIP("this build is without CUDA"); }

#else

namespace {

constexpr int64_t kBatchRows = 8;
constexpr const char* kNeeds = "needs the simulated device, and PYTORCH_NO_CUDA_MEMORY_CACHING=1";

uint64_t device_allocations() { return cuda_sim_counts()["mallocs"].get<uint64_t>(); }

/// Bytes in use on all devices, after the allocator has freed its cache.
int64_t used_memory() {
  c10::cuda::CUDACachingAllocator::emptyCache();
  int64_t used = 0;
  for (c10::DeviceIndex device = 0; device < at::accelerator::deviceCount(); ++device) {
    const auto [free, total] = at::accelerator::getMemoryInfo(device);
    used += static_cast<int64_t>(total - free);
  }
  return used;
}

/// All state that the next step depends on.
std::vector<at::Tensor> state_of(const GpuTraining& training) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& tensor : training.state()) all.push_back(tensor.detach().cpu());
  for (int64_t copy = 1; copy < training.devices->weight_copies(); ++copy) {
    for (const at::Tensor& tensor : training.devices->module(copy)->parameters()) all.push_back(tensor.detach().cpu());
    for (const at::Tensor& tensor : training.devices->module(copy)->buffers()) all.push_back(tensor.cpu());
  }
  all.push_back(at::cuda::detail::getDefaultCUDAGenerator(0).get_state().clone());
  return all;
}

bool all_same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) { return same(x, y); });
}

struct DeviceOutcome {
  std::vector<at::Tensor> state;
  double loss = 0;
  int64_t used = 0, split = 1;
};

/// Runs two warm steps and a third one that fails at allocation number `fault`, if it has that many; 0 disables the
/// fault.
DeviceOutcome run_on_device(const TrainStepOptions& options, int64_t split, uint64_t fault, bool& failed,
                            int64_t devices = 1, Sharding sharding = Sharding::kNone) {
  const int64_t before = used_memory();
  DeviceReplicatorOptions placing{.device = kGpu};
  if (devices > 1) placing = {.strategy = Strategy::kDataParallel, .device = at::kCUDA, .gpu_ids = {0, 1}};
  placing.sharding = sharding;
  placing.bucket_bytes = placing.first_bucket_bytes = 256;
  GpuTraining training(CudaGraph::kOff, options, 8, placing);
  torch::manual_seed(2);
  const std::vector<Batch> more(static_cast<size_t>(options.grad_accum_steps), gpu_batch(kBatchRows, 1));
  training.run(more);
  training.run(more);
  training.step->set_split(split);
  DeviceOutcome outcome;
  {
    std::vector<Batch> batches;
    for (int64_t i = 0; i < options.grad_accum_steps; ++i)
      batches.push_back(gpu_batch(kBatchRows, static_cast<uint64_t>(3 + 100 * i)));
    const uint64_t wanted = device_allocations() + fault;
    const CudaSimSetting setting("FAIL_MALLOC", std::to_string(fault > 0 ? wanted : 0));
    const StepMetrics metrics = training.run(batches);
    failed = fault > 0 && device_allocations() >= wanted;
    outcome.loss = metrics.loss.item<double>();
  }
  outcome.split = training.step->split();
  outcome.state = state_of(training);
  training.run(more);
  outcome.used = used_memory() - before;
  return outcome;
}

void check_every_fault_of_device(const TrainStepOptions& options) {
  bool failed = false;
  std::map<int64_t, DeviceOutcome> expected;
  run_on_device(options, 1, 0, failed);  // one-time allocations
  for (const int64_t split : {1, 2}) expected[split] = run_on_device(options, split, 0, failed);
  CHECK(!all_same(expected[1].state, expected[2].state));  // BatchNorm and dropout see different parts
  std::map<int64_t, int> met;
  for (uint64_t fault = 1;; ++fault) {
    REQUIRE(fault < 2000);
    const DeviceOutcome outcome = run_on_device(options, 1, fault, failed);
    if (!failed) break;
    INFO("allocation " << fault << ", split " << outcome.split);
    ++met[outcome.split];
    REQUIRE(expected.count(outcome.split) == 1);
    for (size_t k = 0; k < outcome.state.size(); ++k) {
      INFO("tensor " << k << " of " << outcome.state.size());
      CHECK(same(outcome.state[k], expected[outcome.split].state[k]));
    }
    CHECK(outcome.loss == expected[outcome.split].loss);
    CHECK(outcome.used == expected[outcome.split].used);
  }
  CHECK(met[2] > 20);  // forward and backward
  CHECK(met[1] > 3);   // the rest is retried unchanged
  CHECK(take_cuda_sim_findings().empty());
}

/// Two threads allocate in any order: the fault hits either device, at any operation.
void check_every_fault_of_two_devices(const TrainStepOptions& options, Sharding sharding) {
  bool failed = false;
  std::map<int64_t, DeviceOutcome> expected;
  run_on_device(options, 1, 0, failed, 2, sharding);
  for (const int64_t split : {1, 2}) expected[split] = run_on_device(options, split, 0, failed, 2, sharding);
  std::map<int64_t, int> met;
  for (uint64_t fault = 1;; ++fault) {
    REQUIRE(fault < 2000);
    const DeviceOutcome outcome = run_on_device(options, 1, fault, failed, 2, sharding);
    if (!failed) break;
    INFO("allocation " << fault << ", split " << outcome.split);
    ++met[outcome.split];
    REQUIRE(expected.count(outcome.split) == 1);
    CHECK(all_same(outcome.state, expected[outcome.split].state));
    CHECK(outcome.loss == expected[outcome.split].loss);
    CHECK(outcome.used == expected[outcome.split].used);
  }
  CHECK(met[2] > 20);
  CHECK(met[1] > 3);
  CHECK(take_cuda_sim_findings().empty());
}

bool has_device_without_caching() { return has_cuda_sim() && getenv("PYTORCH_NO_CUDA_MEMORY_CACHING"); }

}  // namespace

TEST_CASE("Out of memory at any allocation of a device gives the bits of the step in smaller parts",
          "[train][out_of_memory_cuda]") {
  if (!has_device_without_caching()) TRAINKIT_SKIP(kNeeds);
  SECTION("float32") { check_every_fault_of_device({.grad_clip = 0.5, .skip_nonfinite = true}); }
  SECTION("float16") { check_every_fault_of_device({.precision = Precision::kFp16, .grad_clip = 0.5}); }
  SECTION("accumulated") {
    check_every_fault_of_device({.precision = Precision::kBf16, .grad_accum_steps = 2, .grad_clip = 0.5});
  }
}

TEST_CASE("Out of memory at any allocation of one of two devices gives the bits of the step in smaller parts",
          "[train][out_of_memory_cuda]") {
  if (!has_device_without_caching()) TRAINKIT_SKIP(kNeeds);
  const TrainStepOptions options{.grad_clip = 0.5, .skip_nonfinite = true};
  SECTION("which have all of the training state") { check_every_fault_of_two_devices(options, Sharding::kNone); }
  SECTION("which divide the optimizer state") { check_every_fault_of_two_devices(options, Sharding::kOptimizer); }
  SECTION("which divide gradients too") {
    check_every_fault_of_two_devices({.precision = Precision::kFp16, .grad_accum_steps = 2, .grad_clip = 0.5},
                                     Sharding::kGradients);
  }
}

TEST_CASE("Out of memory at any allocation of a rank with a GPU keeps the ranks in step",
          "[train][out_of_memory_cuda][ranks]") {
  if (!has_device_without_caching()) TRAINKIT_SKIP(kNeeds);
  for (const std::string& scenario : std::vector<std::string>{"cuda_oom_on_one", "cuda_oom_on_both"}) {
    const TempDir folder;
    Ranks job("train_rank", 2, {scenario, folder.path().string()}, folder.path().string());
    for (int rank = 0; rank < 2; ++rank) {
      const int code = job.wait(rank, std::chrono::seconds(400));
      INFO(scenario << ": " << job.err(rank) << job.out(rank));
      REQUIRE(code == 0);
      CHECK_THAT(job.out(rank), Catch::StartsWith("every fault met"));
      CHECK_THAT(job.out(rank), !Catch::Contains("differ"));
      CHECK_THAT(job.out(rank), !Catch::Contains("leaks"));
    }
  }
}

#endif
