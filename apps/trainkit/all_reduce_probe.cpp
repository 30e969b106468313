#include <ATen/Functions.h>
#include <fmt/format.h>
#include <torch/cuda.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#ifdef TRAINKIT_WITH_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

#include "trainkit/core/format.h"
#include "trainkit/core/status.h"
#include "trainkit/probes.h"
#include "trainkit/verify.h"

namespace trainkit::tool {
namespace {

constexpr std::array<std::pair<int64_t, int>, 4> kSizes = {
    {{4 << 10, 200}, {256 << 10, 50}, {1 << 20, 30}, {25 << 20, 7}}};
constexpr std::chrono::seconds kTimeout(60);

/// Times all-reduce on one rank. The caller keeps the times of rank 0; all-reduce synchronises the ranks, so theirs are
/// nearly equal.
std::vector<AllReduceSample> time_rank(c10d::Backend& backend, at::Device device) {
  std::vector<AllReduceSample> samples;
  for (const auto& [bytes, repeats] : kSizes) {
    std::vector<at::Tensor> tensors = {at::ones({bytes / 4}, at::TensorOptions().device(device))};
    std::vector<double> seconds;
    for (int i = 0; i <= repeats; ++i) {
      const auto start = std::chrono::steady_clock::now();
      backend.allreduce(tensors)->wait();
      if (device.is_cuda()) torch::cuda::synchronize(device.index());
      seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
      tensors[0].fill_(1);
    }
    seconds.erase(seconds.begin());  // the first one also opens the connections
    std::nth_element(seconds.begin(), seconds.begin() + repeats / 2, seconds.end());
    samples.push_back({bytes, seconds[static_cast<size_t>(repeats / 2)]});
  }
  return samples;
}

absl::StatusOr<std::vector<AllReduceSample>> measure(at::DeviceType type, int ranks) {
  std::vector<AllReduceSample> samples;
  TRAINKIT_RETURN_IF_ERROR(run_ranks(type, ranks, [&](c10d::Backend& backend, at::Device device, int rank) {
    std::vector<AllReduceSample> mine = time_rank(backend, device);
    if (rank == 0) samples = std::move(mine);
  }));
  return samples;
}

c10::intrusive_ptr<c10d::Backend> make_backend(at::DeviceType type, const c10::intrusive_ptr<c10d::Store>& store,
                                               int rank, int ranks) {
#ifdef TRAINKIT_WITH_NCCL
  if (type == at::kCUDA) {
    const auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = kTimeout;
    return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, ranks, options);
  }
#endif
  TORCH_CHECK(type == at::kCPU, "this build has no NCCL");
  const auto options = c10d::ProcessGroupGloo::Options::create(kTimeout);
  options->devices = {c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")};
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, ranks, options);
}

void add_samples(Findings& findings, const std::string& section, int ranks,
                 const absl::StatusOr<std::vector<AllReduceSample>>& samples) {
  if (!samples.ok()) {
    findings.add(section, "error", nullptr, std::string(samples.status().message()), Verdict::kWarning,
                 "ranks on this machine cannot communicate: distributed training fails too");
    return;
  }
  for (const auto& [bytes, seconds] : *samples) {
    // Bus bandwidth: each link carries 2 (n - 1) / n of the bytes. Source: NVIDIA, nccl-tests, PERFORMANCE.md.
    const double speed = static_cast<double>(bytes) * 2 * (ranks - 1) / ranks / seconds;
    findings.add(section, format_size(bytes), {{"seconds", seconds}, {"bus_bytes_per_second", speed}},
                 fmt::format("{:.3g} ms, {}/s", seconds * 1e3, format_size(static_cast<int64_t>(speed))));
  }
}

}  // namespace

absl::Status run_ranks(at::DeviceType type, int ranks,
                       const std::function<void(c10d::Backend& backend, at::Device device, int rank)>& body) {
  // Disable c10d's flight recorder: it is shared by the process, and ranks in several threads would race on its map.
  setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<absl::Status> states(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const at::Device device(type, type == at::kCUDA ? static_cast<c10::DeviceIndex>(rank) : c10::DeviceIndex{-1});
        const auto backend = make_backend(type, store, rank, ranks);
        body(*backend, device, rank);
        backend->shutdown();
      } catch (...) {
        states[static_cast<size_t>(rank)] = status_from_current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& state : states) TRAINKIT_RETURN_IF_ERROR(state);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<AllReduceSample>> measure_gloo(int ranks) { return measure(at::kCPU, ranks); }

void probe_all_reduce(Findings& findings) {
  add_samples(findings, "all-reduce, 2 CPU ranks (gloo)", 2, measure_gloo(2));
#ifdef TRAINKIT_WITH_NCCL
  const int devices = static_cast<int>(torch::cuda::device_count());
  if (devices < 2) return;
  add_samples(findings, fmt::format("all-reduce, {} GPUs (nccl)", devices), devices, measure(at::kCUDA, devices));
#endif
}

}  // namespace trainkit::tool
