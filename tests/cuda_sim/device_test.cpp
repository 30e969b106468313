// The simulated device itself: it detects planted faults and computes the same as the CPU.
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <filesystem>

#include "cuda_sim_control.h"
#include "test_util.h"

using namespace trainkit::test;
using Catch::Contains;

namespace {

const at::Device kGpu(at::kCUDA, 0);

/// Two unordered streams and their tensors.
struct TwoStreams {
  c10::cuda::CUDAStream first = c10::cuda::getStreamFromPool(), second = c10::cuda::getStreamFromPool();
};

at::Tensor pinned(int64_t numbers, double value) { return torch::full({numbers}, value, torch::kFloat).pin_memory(); }

std::vector<double> losses_of_perceptron(at::Device device) {
  torch::manual_seed(1);
  const auto x = torch::randn({64, 16}).to(device), y = torch::randint(5, {64}).to(device);
  torch::nn::Sequential net(torch::nn::Linear(16, 32), torch::nn::GELU(),
                            torch::nn::LayerNorm(torch::nn::LayerNormOptions({32})), torch::nn::Linear(32, 5));
  net->to(device);
  torch::optim::AdamW optimizer(net->parameters(), 1e-2);
  std::vector<double> losses;
  for (int i = 0; i < 8; ++i) {
    optimizer.zero_grad();
    const auto loss = torch::nn::functional::cross_entropy(net->forward(x), y);
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

}  // namespace

TEST_CASE("A perceptron trains on the device with the CPU's losses", "[cuda_sim][device]") {
  const auto expected = losses_of_perceptron(at::kCPU), found = losses_of_perceptron(kGpu);
  for (size_t i = 0; i < expected.size(); ++i) CHECK(found[i] == Approx(expected[i]).epsilon(1e-5));
  CHECK(take_cuda_sim_findings().empty());
}

TEST_CASE("Convolutions, normalisations, pooling and FFT compute as on the CPU", "[cuda_sim][device]") {
  torch::manual_seed(2);
  const auto x = torch::randn({4, 8, 12, 12}), weight = torch::randn({6, 8, 3, 3}),
             depthwise = torch::randn({8, 1, 3, 3});
  const auto on = [&](const std::function<at::Tensor(at::Device)>& work) {
    CHECK(torch::allclose(work(kGpu).cpu(), work(at::kCPU), 1e-4, 1e-5));
  };
  on([&](at::Device d) { return torch::conv2d(x.to(d), weight.to(d), {}, 1, 1); });
  on([&](at::Device d) { return torch::conv2d(x.to(d), depthwise.to(d), {}, 1, 1, 1, 8); });
  on([&](at::Device d) { return torch::conv3d(x.to(d).unsqueeze(1), torch::ones({2, 1, 3, 3, 3}).to(d)); });
  on([&](at::Device d) { return torch::max_pool2d(x.to(d), 2); });
  on([&](at::Device d) { return torch::batch_norm(x.to(d), {}, {}, {}, {}, true, 0.1, 1e-5, true); });
  on([&](at::Device d) {
    return torch::view_as_real(torch::stft(x.to(d).flatten(0, 2), 8, 4, 8, torch::ones({8}).to(d), false, true, true));
  });
  on([&](at::Device d) {
    auto w = weight.to(d, /*non_blocking=*/false, /*copy=*/true).requires_grad_();
    torch::conv2d(x.to(d), w, {}, 2, 1).square().sum().backward();
    return w.grad();
  });
  CHECK(take_cuda_sim_findings().empty());
}

TEST_CASE("Operations that read the device on the host see the computed values", "[cuda_sim][device]") {
  const auto x = torch::arange(10, torch::device(kGpu)).remainder(3);
  CHECK(x.nonzero().size(0) == 6);
  CHECK(x.masked_select(x > 1).numel() == 3);
  CHECK(torch::equal(x, x.clone()));
  CHECK_FALSE(torch::equal(x, x + 1));
  CHECK(x.sum().item<int64_t>() == 9);
}

TEST_CASE("float16 and bfloat16 round as kernels do", "[cuda_sim][device]") {
  for (const auto type : {at::kHalf, at::kBFloat16}) {
    const auto x = torch::randn({32, 64}), w = torch::randn({16, 64});
    const auto y = torch::linear(x.to(kGpu, type), w.to(kGpu, type)).cpu();
    CHECK(y.scalar_type() == type);
    CHECK(torch::allclose(y.to(at::kFloat),
                          torch::linear(x.to(type).to(at::kFloat), w.to(type).to(at::kFloat)).to(type).to(at::kFloat),
                          1e-2, 1e-2));
  }
}

TEST_CASE("The host cannot reach device memory", "[cuda_sim][device]") {
  auto x = torch::ones({8}, kGpu);
  std::vector<float> host(8);
  CHECK(cudaMemcpyAsync(x.data_ptr(), host.data(), 32, cudaMemcpyDeviceToDevice, nullptr) == cudaErrorInvalidValue);
  CHECK_THAT(take_cuda_sim_findings(),
             Contains("cudaMemcpyAsync of kind 3 is given memory of the host to copy to memory of device 0"));
  CHECK(cudaMemsetAsync(host.data(), 0, 32, nullptr) == cudaErrorInvalidValue);
  CHECK_THAT(take_cuda_sim_findings(), Contains("cudaMemsetAsync"));
  CHECK(cudaMemcpyAsync(host.data(), x.data_ptr(), 64 << 20, cudaMemcpyDeviceToHost, nullptr) == cudaErrorInvalidValue);
  CHECK_THAT(take_cuda_sim_findings(), Contains("beyond the allocation"));
  (void)cudaGetLastError();
}

TEST_CASE("A copy source that changes before the copy runs is a race", "[cuda_sim][device]") {
  const CudaSimSetting late("DELAY_US", "3000");
  const auto source = pinned(100, 1);
  const auto copied = source.to(kGpu, /*non_blocking=*/true);
  SECTION("immediately") {
    source.fill_(2);
    CHECK(copied.sum().item<float>() >= 0);
    CHECK_THAT(take_cuda_sim_findings(), Contains("race: the host changed 400 bytes"));
  }
  SECTION("after synchronising") {
    c10::cuda::getCurrentCUDAStream().synchronize();
    source.fill_(2);
    CHECK(copied.sum().item<float>() == 100);
    CHECK(take_cuda_sim_findings().empty());
  }
}

TEST_CASE("A copy target that the host changes before the copy runs is a race", "[cuda_sim][device]") {
  const CudaSimSetting late("DELAY_US", "3000");
  const auto source = torch::full({100}, 3, torch::device(kGpu).dtype(torch::kFloat));
  const auto target = pinned(100, 1);
  c10::cuda::getCurrentCUDAStream().synchronize();
  target.copy_(source, /*non_blocking=*/true);
  SECTION("immediately") {
    target.fill_(2);
    c10::cuda::getCurrentCUDAStream().synchronize();
    CHECK_THAT(take_cuda_sim_findings(), Contains("race: the host changed 400 bytes") && Contains("from the device"));
  }
  SECTION("by another copy, which is in order") {
    target.copy_(source + 1, /*non_blocking=*/true);
    c10::cuda::getCurrentCUDAStream().synchronize();
    CHECK(target.sum().item<float>() == 400);
    CHECK(take_cuda_sim_findings().empty());
  }
  SECTION("after synchronising") {
    c10::cuda::getCurrentCUDAStream().synchronize();
    CHECK(target.sum().item<float>() == 300);
    target.fill_(2);
    CHECK(take_cuda_sim_findings().empty());
  }
}

TEST_CASE("Page-locked memory that is freed while a copy is pending is reported", "[cuda_sim][device]") {
  const CudaSimSetting late("DELAY_US", "3000");
  const auto on_device = torch::ones({100}, torch::device(kGpu).dtype(torch::kFloat));
  const bool waits = GENERATE(false, true), is_source = GENERATE(false, true);
  void* host = aligned_alloc(4096, 4096);
  REQUIRE(cudaHostRegister(host, 400, 0) == cudaSuccess);
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const cudaError_t copied = is_source
                                 ? cudaMemcpyAsync(on_device.data_ptr(), host, 400, cudaMemcpyHostToDevice, stream)
                                 : cudaMemcpyAsync(host, on_device.data_ptr(), 400, cudaMemcpyDeviceToHost, stream);
  REQUIRE(copied == cudaSuccess);
  if (waits) stream.synchronize();
  CHECK(cudaHostUnregister(host) == cudaSuccess);
  stream.synchronize();
  const std::string findings = take_cuda_sim_findings();
  CHECK(findings.empty() == waits);
  if (!waits) CHECK_THAT(findings, Contains("page-locked memory is freed while 1 copies from or to it are pending"));
  free(host);
}

TEST_CASE("Work of two streams on the same bytes must be ordered", "[cuda_sim][device]") {
  TwoStreams streams;
  auto x = torch::zeros({1000}, kGpu);
  c10::cuda::device_synchronize();
  {
    const c10::cuda::CUDAStreamGuard guard(streams.first);
    x.add_(1);
  }
  bool is_ordered = GENERATE(false, true);
  if (is_ordered) {
    at::cuda::CUDAEvent done;
    done.record(streams.first);
    done.block(streams.second);
  }
  {
    const c10::cuda::CUDAStreamGuard guard(streams.second);
    x.mul_(2);
  }
  c10::cuda::device_synchronize();
  const std::string findings = take_cuda_sim_findings();
  CHECK(findings.empty() == is_ordered);
  if (!is_ordered)
    CHECK_THAT(findings, Contains("aten::mul") && Contains("aten::add_") && Contains("nothing orders the two"));
}

TEST_CASE("Memory that another stream still uses must be recorded before it is freed", "[cuda_sim][device]") {
  const bool is_recorded = GENERATE(false, true);
  TwoStreams streams;
  const c10::cuda::CUDAStreamGuard guard(streams.first);
  at::Tensor sum;
  {
    const auto x = torch::ones({5000}, kGpu);
    at::cuda::CUDAEvent made;
    made.record(streams.first);
    made.block(streams.second);
    const c10::cuda::CUDAStreamGuard other(streams.second);
    sum = x.sum();
    if (is_recorded) x.record_stream(streams.second);
  }
  const auto y = torch::full({5000}, 3, kGpu);  // reuses the bytes of x unless they are recorded
  c10::cuda::device_synchronize();
  CHECK(take_cuda_sim_findings().empty() == is_recorded);
}

TEST_CASE("A captured graph computes at each replay, and draws new random numbers", "[cuda_sim][device]") {
  const auto stream = c10::cuda::getStreamFromPool();
  const c10::cuda::CUDAStreamGuard guard(stream);
  auto x = torch::ones({4}, kGpu), sum = torch::zeros({4}, kGpu), noise = torch::zeros({1000}, kGpu);
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  sum.add_(x.mul(2));
  noise.copy_(torch::dropout(torch::ones({1000}, kGpu), 0.5, true));
  graph.capture_end();
  CHECK(sum.sum().item<float>() == 0);
  std::vector<at::Tensor> drawn;
  for (int i = 0; i < 3; ++i) {
    graph.replay();
    drawn.push_back(noise.cpu());
    CHECK(std::abs(drawn.back().mean().item<float>() - 1) < 0.2);
  }
  CHECK(sum.sum().item<float>() == 24);
  CHECK_FALSE(torch::equal(drawn[0], drawn[1]));
  CHECK(take_cuda_sim_findings().empty());
}

TEST_CASE("A graph draws the same random numbers as eager operations", "[cuda_sim][device]") {
  const auto stream = c10::cuda::getStreamFromPool();
  const c10::cuda::CUDAStreamGuard guard(stream);
  const auto draw = [] { return torch::dropout(torch::ones({1000}, kGpu), 0.5, true); };
  torch::cuda::manual_seed(7);
  std::vector<at::Tensor> eager;
  for (int i = 0; i < 3; ++i) eager.push_back(draw().cpu());
  at::cuda::CUDAGraph graph;
  at::Tensor drawn;
  graph.capture_begin();
  drawn = draw();
  graph.capture_end();
  torch::cuda::manual_seed(7);
  for (int i = 0; i < 3; ++i) {
    graph.replay();
    CHECK(torch::equal(drawn.cpu(), eager[static_cast<size_t>(i)]));
  }
}

TEST_CASE("A capture forbids the calls that CUDA forbids", "[cuda_sim][device]") {
  const auto stream = c10::cuda::getStreamFromPool(), other = c10::cuda::getStreamFromPool();
  const auto capture = [&](cudaStreamCaptureMode mode, const std::function<void()>& work) {
    REQUIRE(cudaStreamBeginCapture(stream, mode) == cudaSuccess);
    work();
    cudaGraph_t graph = nullptr;
    const cudaError_t error = cudaStreamEndCapture(stream, &graph);
    if (graph) cudaGraphDestroy(graph);
    (void)cudaGetLastError();
    return error;
  };
  const auto allocate = [] {
    void* p = nullptr;
    if (cudaMalloc(&p, 100) == cudaSuccess) cudaFree(p);
  };
  CHECK(capture(cudaStreamCaptureModeGlobal, [] {}) == cudaSuccess);
  CHECK(capture(cudaStreamCaptureModeGlobal, allocate) == cudaErrorStreamCaptureInvalidated);
  CHECK(capture(cudaStreamCaptureModeThreadLocal, allocate) == cudaErrorStreamCaptureInvalidated);
  CHECK(capture(cudaStreamCaptureModeRelaxed, allocate) == cudaSuccess);
  CHECK(capture(cudaStreamCaptureModeGlobal, [&] { std::thread(allocate).join(); }) ==
        cudaErrorStreamCaptureInvalidated);
  CHECK(capture(cudaStreamCaptureModeThreadLocal, [&] { std::thread(allocate).join(); }) == cudaSuccess);
  CHECK(capture(cudaStreamCaptureModeRelaxed, [&] { cudaStreamSynchronize(stream); }) ==
        cudaErrorStreamCaptureInvalidated);
  cudaEvent_t event = nullptr;
  REQUIRE(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
  CHECK(capture(cudaStreamCaptureModeThreadLocal, [&] {
          cudaEventRecord(event, stream);
          CHECK(cudaEventQuery(event) != cudaSuccess);
        }) == cudaErrorStreamCaptureInvalidated);
  void* bytes = nullptr;
  REQUIRE(cudaMalloc(&bytes, 100) == cudaSuccess);
  CHECK(capture(cudaStreamCaptureModeThreadLocal, [&] {  // a branch that is not joined
          cudaEventRecord(event, stream);
          cudaStreamWaitEvent(other, event, 0);
          cudaMemsetAsync(bytes, 0, 100, other);
        }) == cudaErrorStreamCaptureUnjoined);
  CHECK(capture(cudaStreamCaptureModeThreadLocal, [&] {
          cudaEventRecord(event, stream);
          cudaStreamWaitEvent(other, event, 0);
          cudaMemsetAsync(bytes, 0, 100, other);
          cudaEventRecord(event, other);
          cudaStreamWaitEvent(stream, event, 0);
        }) == cudaSuccess);
  CHECK(capture(cudaStreamCaptureModeThreadLocal, [&] {  // the default stream cannot join
          cudaEventRecord(event, stream);
          CHECK(cudaStreamWaitEvent(nullptr, event, 0) == cudaErrorStreamCaptureImplicit);
        }) == cudaErrorStreamCaptureInvalidated);
  cudaEventDestroy(event);
  cudaFree(bytes);
}

TEST_CASE("Device memory ends at the configured size", "[cuda_sim][device]") {
  c10::cuda::CUDACachingAllocator::emptyCache();
  const CudaSimSetting small("MEMORY_MB", "64", "8192");
  CHECK_THAT(error_of([] { torch::empty({100 << 20}, torch::device(kGpu).dtype(at::kByte)); }),
             Contains("out of memory"));
  CHECK(torch::ones({1000}, kGpu).sum().item<float>() == 1000);
}

TEST_CASE("The device's random numbers have the right distribution", "[cuda_sim][device]") {
  torch::cuda::manual_seed(3);
  const auto x = torch::randn({10000}, kGpu), y = torch::randn({10000}, kGpu);
  CHECK(std::abs(x.mean().item<float>()) < 0.05);
  CHECK(std::abs(x.std().item<float>() - 1) < 0.05);
  CHECK_FALSE(torch::equal(x, y));
}

TEST_CASE("A program ends with operations in the queues of its streams", "[.ends_with_queued_operations]") {
  for (int i = 0; i < 2; ++i) {
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
    at::Tensor x = torch::randn({64, 64}, kGpu);
    for (int n = 0; n < 2000; ++n) x = torch::gelu(x);  // oneDNN's objects exist from the first one on
  }
}

TEST_CASE("Operations that are still queued when a program ends do not run during its exit", "[cuda_sim][device]") {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  for (int i = 0; i < 4; ++i) CHECK(std::system((self + " '[.ends_with_queued_operations]' > /dev/null").c_str()) == 0);
}
