#include "core/device/cuda_support.h"

#include <ATen/detail/CUDAHooksInterface.h>
#include <dlfcn.h>

#include <filesystem>
#include <fstream>

#include "core/device/late_cuda.h"
#include "trainkit/core/error.h"
#include "trainkit/core/processors.h"

namespace trainkit {
namespace {

namespace fs = std::filesystem;

/// Returns the driver version that was released with the first release of a CUDA major version, for Linux.
/// Source: NVIDIA, CUDA Toolkit release notes, table "CUDA Toolkit and Corresponding Driver Versions".
const char* driver_for(int cuda_major) {
  switch (cuda_major) {
    case 13:
      return "580";
    case 12:
      return "525";
    case 11:
      return "450";
    default:
      return "newest";
  }
}

/// Returns the second remedy for a driver of CUDA 12: PyTorch builds LibTorch up to 2.14 for CUDA 12.6, not on PyPI.
/// Source: docs/installing.md, table of drivers.
std::string older_libtorch(const CudaFacts& facts) {
  if (facts.driver_cuda / 1000 != 12) return "";
  return ", or build with a LibTorch for CUDA 12.6: pip install \"torch==2.14.*\" --index-url "
         "https://download.pytorch.org/whl/cu126, then ./dev build";
}

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

int count_pci_gpus() {
  std::error_code failed;
  int count = 0;
  fs::directory_iterator entry("/sys/bus/pci/devices", failed);
  if (failed) return -1;
  for (const fs::directory_iterator end; entry != end && !failed; entry.increment(failed)) {
    // Vendor NVIDIA, class "display controller": VGA (0x0300) or 3D (0x0302).
    count +=
        first_line(entry->path() / "vendor") == "0x10de" && first_line(entry->path() / "class").starts_with("0x03");
  }
  return count;
}

/// Returns "580.65.06" for "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build ...".
std::string kernel_module_version() {
  const std::string line = first_line("/proc/driver/nvidia/version");
  for (size_t i = 0; i < line.size();) {
    const size_t end = std::min(line.find(' ', i), line.size());
    std::string word = line.substr(i, end - i);
    const bool number = word.find_first_not_of("0123456789.") == std::string::npos;
    if (number && word.find('.') != std::string::npos) return word;
    i = end + 1;
  }
  return {};
}

void probe_driver(CudaFacts& facts) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) return;  // never closed if it loads, because LibTorch uses it too
  const auto version = reinterpret_cast<int (*)(int*)>(dlsym(library, "cuDriverGetVersion"));
  const auto start = reinterpret_cast<int (*)(unsigned)>(dlsym(library, "cuInit"));
  const auto describe = reinterpret_cast<int (*)(int, const char**)>(dlsym(library, "cuGetErrorString"));
  if (!version || version(&facts.driver_cuda) != 0) facts.driver_cuda = 0;
  const int error = start ? start(0) : 0;
  const char* text = nullptr;
  if (error != 0 && describe && describe(error, &text) == 0 && text) facts.driver_error = text;
  if (error != 0 && !text) facts.driver_error = "error " + std::to_string(error);
}

CudaDiagnosis no_driver(const CudaFacts& facts) {
  const std::string driver = driver_for(facts.libtorch_cuda / 1000);
  if (facts.pci_gpus == 0) {
    return {CudaState::kNoDriver, "found no NVIDIA driver (libcuda.so.1) and no NVIDIA GPU on the PCI bus",
            "train with --device cpu; on a rented machine, choose one with a GPU"};
  }
  return {CudaState::kNoDriver, "found no NVIDIA driver (libcuda.so.1)",
          "install the driver, version " + driver +
              " or later; in a container, start it with --gpus all "
              "(NVIDIA Container Toolkit)"};
}

CudaDiagnosis not_visible(const CudaFacts& facts) {
  const std::string& value = *facts.visible_devices;
  if (value.empty() || value.starts_with("-1")) {
    return {CudaState::kHidden,
            "CUDA_VISIBLE_DEVICES is " + (value.empty() ? "empty" : value) + ", which hides every GPU",
            "unset CUDA_VISIBLE_DEVICES"};
  }
  return {CudaState::kNoSuchDevice, "CUDA_VISIBLE_DEVICES=" + escape_text(value, 60) + " names no usable GPU",
          "unset it, or list GPU numbers of nvidia-smi -L without duplicates: CUDA_VISIBLE_DEVICES=0"};
}

}  // namespace

std::string cuda_version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

const char* cuda_state_name(CudaState state) {
  switch (state) {
    case CudaState::kReady:
      return "ready";
    case CudaState::kCpuOnlyLibTorch:
      return "cpu_only_libtorch";
    case CudaState::kNoDriver:
      return "no_driver";
    case CudaState::kDriverTooOld:
      return "driver_too_old";
    case CudaState::kHidden:
      return "hidden";
    case CudaState::kNoSuchDevice:
      return "no_such_device";
    case CudaState::kDriverFails:
      return "driver_fails";
  }
  return "driver_fails";
}

CudaDiagnosis diagnose_cuda(const CudaFacts& facts) {
  if (facts.devices > 0) return {};
  if (facts.libtorch_cuda == 0) {
    return {
        CudaState::kCpuOnlyLibTorch, "this LibTorch was built without CUDA",
        "build with a LibTorch for CUDA (the torch package of PyPI, not the one of download.pytorch.org/whl/cpu), or "
        "train with --device cpu"};
  }
  if (facts.driver_cuda == 0) return no_driver(facts);
  if (facts.driver_cuda / 1000 < facts.libtorch_cuda / 1000) {
    const std::string driver = facts.driver_version.empty() ? "the driver" : "driver " + facts.driver_version;
    return {
        CudaState::kDriverTooOld,
        driver + " supports CUDA up to " + cuda_version_text(facts.driver_cuda) + ", but LibTorch was built for " +
            cuda_version_text(facts.libtorch_cuda),
        std::string("install driver ") + driver_for(facts.libtorch_cuda / 1000) + " or later" + older_libtorch(facts)};
  }
  if (facts.visible_devices) return not_visible(facts);
  return {CudaState::kDriverFails,
          "the driver reports no GPU" + (facts.driver_error.empty() ? "" : ": " + facts.driver_error),
          "run nvidia-smi; after a driver update, restart the machine"};
}

CudaFacts probe_cuda() {
  CudaFacts facts;
  // The hooks that LibTorch found first know nothing of CUDA if libtorch_cuda.so was not loaded then.
  detail::load_torch_cuda();
  const auto loaded = at::CUDAHooksRegistry()->Create("CUDAHooks", at::CUDAHooksArgs{});
  if (loaded && loaded->hasCUDART()) facts.libtorch_cuda = static_cast<int>(loaded->versionCUDART());
  probe_driver(facts);
  facts.driver_version = kernel_module_version();
  facts.pci_gpus = count_pci_gpus();
  const EnvironmentVariables variables = environment_variables();
  if (const auto entry = variables.find("CUDA_VISIBLE_DEVICES"); entry != variables.end())
    facts.visible_devices = entry->second;
  facts.devices = at::detail::getCUDAHooks().deviceCount();
  return facts;
}

}  // namespace trainkit
