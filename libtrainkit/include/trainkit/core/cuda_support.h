#pragma once
/// Whether CUDA can be used on this machine, and if not, why not and what to do.

#include <optional>
#include <string>

namespace trainkit {

/// What can be seen of CUDA without using it. Versions as CUDA counts them: 13000 is 13.0, 12040 is 12.4.
struct CudaFacts {
  /// CUDA that LibTorch was built for; 0: a LibTorch without CUDA.
  int libtorch_cuda = 0;
  /// Newest CUDA that the driver (libcuda.so.1) can run; 0: there is no driver.
  int driver_cuda = 0;
  /// The driver's own version, "580.65.06"; empty if it does not say.
  std::string driver_version = {};
  /// NVIDIA's GPUs on the PCI bus, driver or not; -1 where the bus cannot be seen.
  int pci_gpus = -1;
  /// CUDA_VISIBLE_DEVICES; nullopt if it is not set.
  std::optional<std::string> visible_devices = {};
  /// Devices that LibTorch can use.
  int devices = 0;
  /// What the driver answered when it was asked to start (cuInit); empty: nothing bad.
  std::string driver_error = {};
};

enum class CudaState {
  kReady,
  kCpuOnlyLibTorch,  ///< LibTorch was built without CUDA.
  kNoDriver,         ///< libcuda.so.1 is not there.
  kDriverTooOld,     ///< The driver runs an earlier major version of CUDA than LibTorch needs.
  kHidden,           ///< CUDA_VISIBLE_DEVICES is empty (or begins with -1).
  kNoSuchDevice,     ///< CUDA_VISIBLE_DEVICES names devices, none of which can be used.
  kDriverFails       ///< Everything is there, and still no device: the driver's error says more.
};

/// One word: "ready", "cpu_only_libtorch", "no_driver", "driver_too_old", "hidden", "no_such_device", "driver_fails".
const char* cuda_state_name(CudaState state);

struct CudaDiagnosis {
  CudaState state = CudaState::kReady;
  /// One sentence each; empty when ready.
  std::string problem = {};
  std::string remedy = {};
};

/// The first of these causes, from the bottom up, that explains why there is no device. A pure function.
/// Source of the rule on versions: NVIDIA, CUDA Compatibility: any release of a major version runs on every driver of
/// that major version or a later one.
CudaDiagnosis diagnose_cuda(const CudaFacts& facts);

/// Asks LibTorch, the driver (dlopen of libcuda.so.1), /proc, /sys and the environment. Starts the driver if there is
/// one, which may take a second.
CudaFacts probe_cuda();

/// "13.0" of 13000.
std::string cuda_version_text(int version);

}  // namespace trainkit
