// The host is at most one step ahead of slow devices, and memory does not grow.
#include "test_util.h"
#include "train/loop_util.h"
#include "trainkit/data/prefetcher.h"
#include "trainkit/data/sampler.h"
#include "trainkit/optim/adam.h"
#include "trainkit/train/train_step.h"

#ifdef TRAINKIT_WITH_CUDA
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDACachingAllocator.h>
#endif

using namespace trainkit;
using namespace trainkit::test;

#ifndef TRAINKIT_WITH_CUDA

TEST_CASE("The host is at most one step ahead", "[train][steps_in_flight_cuda]") {
  TRAINKIT_SKIP("this build is without CUDA");
}

#else

namespace {

std::vector<at::Device> gpus() {
  std::vector<at::Device> devices;
  for (c10::DeviceIndex i = 0; i < torch::cuda::device_count(); ++i) devices.emplace_back(at::kCUDA, i);
  return devices;
}

DeviceReplicatorOptions placed_on(const std::vector<at::Device>& devices) {
  if (devices.size() == 1) return {.strategy = Strategy::kSingle, .device = devices.front()};
  return {.strategy = Strategy::kDataParallel, .device = devices.front()};
}

struct SlowTraining {
  SlowTraining(const std::vector<at::Device>& devices, int64_t grad_accum_steps)
      : replicas(DeviceReplicator::create([] { return TinyNet(0.0); }, placed_on(devices)).value()),
        step(*replicas, optimizer, {.grad_accum_steps = grad_accum_steps, .cuda_graph = CudaGraph::kOff}) {}

  std::unique_ptr<DeviceReplicator> replicas;
  AdamW optimizer;
  TrainStep step;
  LossFunction loss = make_loss_function(tiny_loss);
};

/// Event marks of steps on all devices.
struct Marks {
  explicit Marks(const std::vector<at::Device>& devices) {
    for (const at::Device device : devices) {
      events.emplace_back();
      events.back().record(c10::cuda::getCurrentCUDAStream(device.index()));
    }
  }
  bool passed() const {
    return std::all_of(events.begin(), events.end(), [](const at::cuda::CUDAEvent& event) { return event.query(); });
  }
  std::vector<at::cuda::CUDAEvent> events;
};

int64_t bytes_reserved(at::Device device) {
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return c10::cuda::CUDACachingAllocator::getDeviceStats(device.index()).reserved_bytes[kAll].current;
}

}  // namespace

TEST_CASE("The host is at most one step ahead", "[train][steps_in_flight_cuda]") {
  if (!torch::cuda::is_available()) TRAINKIT_SKIP("there is no GPU");
  const std::vector<at::Device> all = gpus();
  const auto devices = GENERATE_COPY(std::vector<at::Device>{all.front()}, all);
  SlowTraining training(devices, /*grad_accum_steps=*/2);
  REQUIRE(training.replicas->replicas() == static_cast<int64_t>(devices.size()));
  const at::Device fed = devices.size() == 1 ? devices.front() : at::Device(at::kCPU);  // replicas take their shares
  const auto loader = Prefetcher::create(tiny_dataset(4096), SequentialSampler(4096),
                                         {.batch_size = 16, .num_workers = 1, .pin_memory = true, .device = fed})
                          .value();
  std::vector<Marks> steps;
  for (size_t k = 0; k < 40; ++k) {
    training.step.accumulate(loader->next().value().value(), training.loss);
    if (k >= 3) CHECK(steps[k - 3].passed());  // its mark follows all work of step k - 3
    training.step.accumulate(loader->next().value().value(), training.loss);
    training.step.finish();
    steps.emplace_back(devices);
  }
}

TEST_CASE("Batches queued for a slow device do not accumulate", "[train][steps_in_flight_cuda]") {
  if (!torch::cuda::is_available()) TRAINKIT_SKIP("there is no GPU");
  const at::Device device(at::kCUDA, 0);
  SlowTraining training({device}, /*grad_accum_steps=*/1);
  constexpr int64_t kRows = 64 * 32768;  // 1 MiB per batch
  const auto loader = Prefetcher::create(tiny_dataset(kRows), SequentialSampler(kRows),
                                         {.batch_size = 32768, .num_workers = 1, .device = device})
                          .value();
  int64_t warm = 0;
  for (int k = 0; k < 60; ++k) {
    training.step(loader->next().value().value(), training.loss);
    if (k == 14) warm = bytes_reserved(device);
  }
  CHECK(bytes_reserved(device) <= warm + (8 << 20));  // without a bound, half as much again
}

#endif
