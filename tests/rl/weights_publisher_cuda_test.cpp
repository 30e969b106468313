// WeightsPublisher on a GPU: side streams and events, never a synchronisation.
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/torch.h>

#include <atomic>
#include <thread>

#include "cuda_sim/cuda_sim_control.h"
#include "test_util.h"
#include "trainkit/rl/weights_publisher.h"

using namespace trainkit;
using namespace trainkit::test;

#define NEEDS_GPU \
  if (!torch::cuda::is_available()) TRAINKIT_SKIP("there is no GPU")

namespace {

const at::Device kFirstGpu(at::kCUDA, 0);

struct GpuNetImpl : torch::nn::Module {
  torch::nn::Linear first = register_module("first", torch::nn::Linear(32, 64));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(64));
};
TORCH_MODULE(GpuNet);

void fill_all(GpuNet& net, int64_t value) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& tensor : net->parameters()) tensor.fill_(value);
  for (at::Tensor& tensor : net->buffers()) tensor.fill_(value);
}

/// Whether all numbers of a version are its step.
bool is_whole(const WeightsVersion& version) {
  for (const at::Tensor& tensor : version.tensors) {
    if (!tensor.eq(version.step).all().item<bool>()) return false;
  }
  return true;
}

int64_t syncs() {
  if (!has_cuda_sim()) return 0;
  const nlohmann::json counts = cuda_sim_counts();
  return counts["stream_syncs"].get<int64_t>() + counts.value("device_syncs", int64_t{0}) +
         counts.value("event_syncs", int64_t{0}) + counts["pageable"].get<int64_t>();
}

}  // namespace

TEST_CASE("Versions of a model on a GPU reach the CPU and the GPU complete, without a synchronisation",
          "[rl][weights_cuda]") {
  NEEDS_GPU;
  if (has_cuda_sim()) set_cuda_sim("DELAY_US", "300");
  GpuNet net;
  fill_all(net, 0);
  net->to(kFirstGpu);
  WeightsPublisher weights(*net, {at::kCPU, kFirstGpu});
  CHECK(is_whole(*weights.latest()));
  CHECK(is_whole(*weights.latest(kFirstGpu)));
  ActorModel<GpuNet> copying([] { return GpuNet(); }, weights, {.device = kFirstGpu, .copies = true});
  ActorModel<GpuNet> sharing([] { return GpuNet(); }, weights, {.device = kFirstGpu});
  std::vector<std::shared_ptr<const WeightsVersion>> seen;
  const int64_t before = syncs();
  for (int64_t step = 1; step <= 60; ++step) {
    fill_all(net, step);  // the next update: at once, behind the copy in the order of the stream
    weights.publish(step);
    for (const at::Device device : {at::Device(at::kCPU), kFirstGpu}) seen.push_back(weights.latest(device));
    copying.refresh();
    sharing.refresh();
  }
  CHECK(syncs() == before);
  c10::cuda::device_synchronize();
  for (const auto& version : seen) {
    CHECK(is_whole(*version));
    CHECK(version->tensors.front().is_cuda() == (version->tensors.back().is_cuda()));
  }
  // The last version arrives although nobody publishes any more.
  for (const at::Device device : {at::Device(at::kCPU), kFirstGpu}) {
    while (weights.latest(device)->step < 60) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(is_whole(*weights.latest(device)));
    CHECK(weights.latest(device)->tensors.front().device() == device);
  }
  CHECK(weights.latest()->tensors.front().is_pinned());
  for (ActorModel<GpuNet>* actor : {&copying, &sharing}) {
    GpuNet& model = actor->refresh();
    CHECK(actor->version() == 60);
    CHECK(model->first->weight.eq(60).all().item<bool>());
    CHECK(model->norm->running_mean.eq(60).all().item<bool>());
  }
  if (has_cuda_sim()) {
    set_cuda_sim("DELAY_US", "0");
    CHECK(take_cuda_sim_findings().empty());
  }
}

TEST_CASE("Readers in threads, on streams of their own, never see parts of two versions of a GPU's model",
          "[rl][weights_cuda]") {
  NEEDS_GPU;
  if (has_cuda_sim()) set_cuda_sim("RANDOM_DELAY_US", "200");
  GpuNet net;
  fill_all(net, 0);
  net->to(kFirstGpu);
  WeightsPublisher weights(*net, {at::kCPU, kFirstGpu});
  std::atomic<bool> ends{false};
  std::atomic<int64_t> torn{0}, backwards{0}, seen{0};
  const auto read = [&](at::Device device, bool copies) {
    at::set_num_threads(1);
    const c10::cuda::CUDAStreamGuard stream(c10::cuda::getStreamFromPool(false, 0));
    ActorModel<GpuNet> actor([] { return GpuNet(); }, weights, {.device = device, .copies = copies});
    for (int64_t last = 0; !ends; last = actor.version()) {
      GpuNet& model = actor.refresh();
      WeightsVersion own = {.step = actor.version(), .tensors = model->parameters()};
      for (const at::Tensor& buffer : model->buffers()) own.tensors.push_back(buffer);
      if (!is_whole(own) || !is_whole(*weights.latest(device))) ++torn;
      if (actor.version() < last) ++backwards;
      if (actor.version() > last) ++seen;
    }
  };
  std::vector<std::thread> readers;
  for (const at::Device device : {at::Device(at::kCPU), kFirstGpu}) {
    for (const bool copies : {false, true}) readers.emplace_back(read, device, copies);
  }
  for (int64_t step = 1; step <= 100 || (seen < 60 && step < 100'000); ++step) {
    fill_all(net, step);
    weights.publish(step);
    if (step % 10 == 0) c10::cuda::device_synchronize();  // else the readers would wait behind its queue
  }
  ends = true;
  for (std::thread& reader : readers) reader.join();
  CHECK(torn == 0);
  CHECK(backwards == 0);
  CHECK(seen >= 60);
  if (has_cuda_sim()) {
    set_cuda_sim("RANDOM_DELAY_US", "0");
    CHECK(take_cuda_sim_findings().empty());
  }
}

TEST_CASE("A model on the CPU gives its weights to a GPU", "[rl][weights_cuda]") {
  NEEDS_GPU;
  GpuNet net;
  fill_all(net, 0);
  WeightsPublisher weights(*net, {kFirstGpu, at::kCPU});
  for (int64_t step = 1; step <= 20; ++step) {
    fill_all(net, step);
    weights.publish(step);
    CHECK(is_whole(*weights.latest(kFirstGpu)));
    CHECK(weights.latest()->step == step);
  }
  while (weights.latest(kFirstGpu)->step < 20) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(is_whole(*weights.latest(kFirstGpu)));
  if (has_cuda_sim()) CHECK(take_cuda_sim_findings().empty());
}
