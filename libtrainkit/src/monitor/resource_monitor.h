#pragma once
/// Reads the resource usage of this process from the kernel and of the GPUs from NVIDIA's driver.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trainkit/monitor/monitor.h"

namespace trainkit {

/// Usage of one GPU by all processes of the machine, as reported by the driver.
struct GpuUsage {
  std::string name = {};
  int64_t used_bytes = 0;
  int64_t total_bytes = 0;
  /// Share of the driver's last sampling period (up to a second) in which a kernel ran, 0 to 1. Negative if the driver
  /// does not report it (a MIG slice).
  double utilization = -1;
  /// PCI bus id, "00000000:01:00.0". Empty if the driver does not report it.
  std::string pci_bus_id = {};
};

/// A process of any user that has allocated memory on a GPU.
struct GpuProcess {
  /// Index of the GPU in the driver's order, as in ResourceMonitor::gpus().
  int gpu = 0;
  int64_t pid = 0;
  /// Name of the program. Empty if it is not visible (another container).
  std::string name = {};
  /// Bytes used by the process. -1 if the driver does not report it.
  int64_t used_bytes = -1;
};

/// Names of the driver's libraries, opened with dlopen. If one is missing, no GPUs are reported.
struct DriverLibraries {
  std::string nvml = "libnvidia-ml.so.1", cuda = "libcuda.so.1";
};

/// Reads the memory of this process from /proc, and GPU usage from NVIDIA's driver if its library is
/// installed.
///
/// Used by one thread at a time. A sample takes some microseconds, with GPUs up to a millisecond: too slow for every
/// step.
class ResourceMonitor {
 public:
  explicit ResourceMonitor(DriverLibraries libraries = {});
  ~ResourceMonitor();

  /// Resident set size of this process in bytes.
  static int64_t resident_bytes();
  /// Usage of all GPUs in the driver's order, which CUDA_VISIBLE_DEVICES does not change.
  std::vector<GpuUsage> gpus() const;
  /// Usage of LibTorch's devices cuda:N, in the given order. Matches devices by PCI bus id, so CUDA_VISIBLE_DEVICES and
  /// CUDA_DEVICE_ORDER do not matter. Omits a device that cannot be identified. Requires initialised CUDA.
  std::vector<GpuUsage> gpus_of(const std::vector<int>& cuda_devices) const;
  /// Processes that have memory on the GPUs. Empty if the driver does not report them.
  std::vector<GpuProcess> gpu_processes() const;

 private:
  class Nvml;
  std::unique_ptr<Nvml> nvml_;
  std::string cuda_library_;
};

}  // namespace trainkit
