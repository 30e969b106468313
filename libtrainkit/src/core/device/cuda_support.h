#pragma once
/// Diagnosis of CUDA: whether it can be used on this machine and, if not, the cause and the remedy.

#include <optional>
#include <string>

namespace trainkit {

/// Facts about CUDA that are available without using it. Versions use CUDA's encoding: 13000 is 13.0, 12040 is 12.4.
struct CudaFacts {
  /// CUDA version that LibTorch was built for; 0 for a LibTorch without CUDA.
  int libtorch_cuda = 0;
  /// Newest CUDA version that the driver (libcuda.so.1) supports; 0 without a driver.
  int driver_cuda = 0;
  /// Version of the driver itself, for example "580.65.06"; empty if unknown.
  std::string driver_version = {};
  /// Number of NVIDIA GPUs on the PCI bus, with or without a driver; -1 if the bus cannot be read.
  int pci_gpus = -1;
  /// Value of CUDA_VISIBLE_DEVICES; nullopt if it is not set.
  std::optional<std::string> visible_devices = {};
  /// Number of devices that LibTorch can use.
  int devices = 0;
  /// Error of the driver's initialisation (cuInit); empty if there was none.
  std::string driver_error = {};
};

enum class CudaState {
  kReady,
  kCpuOnlyLibTorch,  ///< LibTorch was built without CUDA.
  kNoDriver,         ///< libcuda.so.1 is missing.
  kDriverTooOld,     ///< The driver supports only an earlier major version of CUDA than LibTorch needs.
  kHidden,           ///< CUDA_VISIBLE_DEVICES is empty (or begins with -1).
  kNoSuchDevice,     ///< CUDA_VISIBLE_DEVICES names devices, but none of them can be used.
  kDriverFails       ///< Everything is installed, but there is no device; the driver's error says more.
};

/// Returns the state's name: "ready", "cpu_only_libtorch", "no_driver", "driver_too_old", "hidden", "no_such_device" or
/// "driver_fails".
const char* cuda_state_name(CudaState state);

struct CudaDiagnosis {
  CudaState state = CudaState::kReady;
  /// One sentence each; empty if the state is kReady.
  std::string problem = {};
  std::string remedy = {};
};

/// Returns the first cause of a missing device, checked in this order: LibTorch's build, the driver, its version,
/// CUDA_VISIBLE_DEVICES, the driver's error. A pure function.
/// Source of the version rule: NVIDIA, CUDA Compatibility: any release of a major version runs on every driver of that
/// major version or a later one.
CudaDiagnosis diagnose_cuda(const CudaFacts& facts);

/// Queries LibTorch, the driver (dlopen of libcuda.so.1), /proc, /sys and the environment. Initialises the driver if
/// there is one, which may take a second.
CudaFacts probe_cuda();

/// Formats a CUDA version: "13.0" for 13000.
std::string cuda_version_text(int version);

}  // namespace trainkit
