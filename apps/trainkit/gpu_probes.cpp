#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/Functions.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/cuda.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "core/device/cuda_support.h"
#include "core/device/gpu_kernel_support.h"
#include "monitor/resource_monitor.h"
#include "train/run/run_state.h"
#include "trainkit/core/format.h"
#include "trainkit/core/status.h"
#include "trainkit/probes.h"

namespace trainkit::tool {
namespace {

/// Returns the speed of copies from the host to `device` in bytes per second: the best of five copies of 256 MiB.
double copy_speed(at::Device device, bool pinned) {
  constexpr int64_t kBytes = int64_t{256} << 20;
  const auto host = at::ones({kBytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(pinned));
  const auto there = at::empty({kBytes}, at::TensorOptions().dtype(at::kByte).device(device));
  double best = 0;
  for (int i = 0; i < 6; ++i) {
    torch::cuda::synchronize(device.index());
    const auto start = std::chrono::steady_clock::now();
    there.copy_(host, /*non_blocking=*/pinned);
    torch::cuda::synchronize(device.index());
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    if (i > 0) best = std::max(best, static_cast<double>(kBytes) / seconds.count());  // the first one warms up
  }
  return best;
}

/// Functions of the CUDA driver API, loaded at run time. nullptr if the library is missing.
struct Driver {
  Driver() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) return;
    name = reinterpret_cast<decltype(name)>(dlsym(library, "cuDeviceGetName"));
    reaches = reinterpret_cast<decltype(reaches)>(dlsym(library, "cuDeviceCanAccessPeer"));
  }
  int (*name)(char*, int, int) = nullptr;
  int (*reaches)(int*, int, int) = nullptr;
};

void probe_device(Findings& findings, const Driver& driver, int index, bool quick) {
  const std::string section = fmt::format("gpu {}", index);
  char name[256] = "";
  if (!driver.name || driver.name(name, sizeof name, index) != 0) name[0] = '\0';
  findings.add(section, "name", name, name);
  const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(index));
  const auto [free, total] = at::accelerator::getMemoryInfo(device.index());
  const bool tight = free < total / 2;
  findings.add(
      section, "memory", {{"free_bytes", free}, {"total_bytes", total}},
      fmt::format("{} free of {}", format_size(static_cast<int64_t>(free)), format_size(static_cast<int64_t>(total))),
      tight ? Verdict::kWarning : Verdict::kOk, tight ? "other processes hold the rest: see \"gpu processes\"" : "");
  at::globalContext().lazyInitDevice(at::kCUDA);
  const AllocatorUse use = allocator_use(device);
  findings.add(
      section, "allocator",
      {{"allocated_bytes", use.allocated_bytes}, {"reserved_bytes", use.reserved_bytes}, {"total_bytes", total}},
      describe_memory(use, static_cast<int64_t>(total)));
  const int capability = trainkit::detail::compute_capability(device);
  const std::string number = fmt::format("{}.{}", capability / 10, capability % 10);
  findings.add(section, "compute capability", number, number);
  add_kernels(findings, section, trainkit::detail::compiled_kernel_codes(), capability);
  if (quick) return;
  for (const bool pinned : {true, false}) {
    const double speed = copy_speed(device, pinned);
    findings.add(section, pinned ? "copy, pinned" : "copy, pageable", speed,
                 format_size(static_cast<int64_t>(speed)) + "/s from the host");
  }
}

/// Adds which GPU can access the memory of which other GPU directly (peer to peer).
void probe_peers(Findings& findings, const Driver& driver, int devices) {
  if (devices < 2 || !driver.reaches) return;
  bool all = true;
  for (int from = 0; from < devices; ++from) {
    std::vector<int> row;
    std::string text;
    for (int to = 0; to < devices; ++to) {
      int can = from == to;
      if (from != to && driver.reaches(&can, from, to) != 0) can = 0;
      row.push_back(can);
      text += from == to ? " ." : can ? " x" : " -";
      all = all && can;
    }
    findings.add("peer to peer", fmt::format("gpu {}", from), row, text.substr(1));
  }
  if (!all)
    findings.add("peer to peer", "all pairs", false, "no", Verdict::kNote,
                 "gradients between some GPUs go through the host: `nvidia-smi topo -m` shows the connections");
}

/// Adds the architectures that the kernels of this build were compiled for. Needs no GPU.
void probe_compiled_kernels(Findings& findings) {
  std::vector<std::string> names;
  for (const auto& code : trainkit::detail::parse_kernel_codes(trainkit::detail::compiled_kernel_codes())) {
    names.push_back(code.name());
  }
  findings.add("cuda", "kernels", names,
               names.empty() ? "none: this build has no CUDA" : fmt::format("{}", fmt::join(names, " ")));
}

}  // namespace

void add_kernels(Findings& findings, const std::string& section, const std::string& codes, int capability) {
  const auto code = trainkit::detail::kernel_code_for(trainkit::detail::parse_kernel_codes(codes), capability);
  const std::string architecture = fmt::format("{}.{}", capability / 10, capability % 10);
  const auto add = [&](const char* state, const std::string& text, Verdict verdict, const std::string& hint) {
    findings.add(section, "kernels",
                 {{"state", state}, {"code", code ? code->name() : ""}, {"compute_capability", architecture}}, text,
                 verdict, hint);
  };
  if (!code) {
    return add("none", fmt::format("none for compute capability {}: LibTorch's operations are used", architecture),
               Verdict::kWarning, fmt::format("rebuild with TORCH_CUDA_ARCH_LIST={}", architecture));
  }
  if (!code->is_ptx) return add("compiled", code->name() + " (compiled)", Verdict::kOk, "");
  add("ptx", code->name() + " (PTX, compiled on first use)", Verdict::kNote,
      fmt::format("TORCH_CUDA_ARCH_LIST={} compiles them in the build", architecture));
}

void probe_gpus(Findings& findings, bool quick) {
  const CudaFacts facts = probe_cuda();
  const CudaDiagnosis diagnosis = diagnose_cuda(facts);
  const auto version = [](int number) { return number ? cuda_version_text(number) : std::string("none"); };
  findings.add("cuda", "of LibTorch", version(facts.libtorch_cuda), version(facts.libtorch_cuda));
  findings.add("cuda", "of the driver", version(facts.driver_cuda),
               version(facts.driver_cuda) + (facts.driver_version.empty() ? "" : ", driver " + facts.driver_version));
  probe_compiled_kernels(findings);
  // A machine without a GPU is fine. A GPU on the PCI bus that CUDA cannot use is a problem.
  const bool no_gpu = diagnosis.state == CudaState::kNoDriver && facts.pci_gpus <= 0;
  const bool ready = diagnosis.state == CudaState::kReady;
  findings.add("cuda", "state", cuda_state_name(diagnosis.state),
               ready ? fmt::format("ready, {} devices", facts.devices) : diagnosis.problem,
               ready    ? Verdict::kOk
               : no_gpu ? Verdict::kNote
                        : Verdict::kWarning,
               diagnosis.remedy);
  const Driver driver;
  for (int i = 0; i < facts.devices; ++i) {
    try {
      probe_device(findings, driver, i, quick);
    } catch (...) {
      findings.add(fmt::format("gpu {}", i), "error", nullptr, std::string(status_from_current_exception().message()),
                   Verdict::kWarning, "see nvidia-smi; this device would fail in training too");
    }
  }
  probe_peers(findings, driver, facts.devices);
  for (const GpuProcess& process : ResourceMonitor().gpu_processes()) {
    const std::string memory = process.used_bytes < 0 ? "an unknown amount" : format_size(process.used_bytes);
    findings.add(
        "gpu processes", fmt::format("pid {} on gpu {}", process.pid, process.gpu),
        {{"pid", process.pid}, {"gpu", process.gpu}, {"name", process.name}, {"used_bytes", process.used_bytes}},
        fmt::format("{} holds {}", process.name.empty() ? "a process of another container" : process.name, memory),
        Verdict::kNote);
  }
}

}  // namespace trainkit::tool
