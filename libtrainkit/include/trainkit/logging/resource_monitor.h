#pragma once
/// What this process and the GPUs use, asked of the kernel and of NVIDIA's driver.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trainkit {

/// A GPU as its driver sees it: of the whole machine, whoever uses it.
struct GpuUsage {
  std::string name = {};
  int64_t used_bytes = 0;
  int64_t total_bytes = 0;
  /// Share of the driver's last sampling period (up to a second) in which a kernel ran, 0 to 1; negative where the
  /// driver does not tell (a slice of a GPU, MIG).
  double utilization = -1;
  /// "00000000:01:00.0"; empty where the driver does not tell.
  std::string pci_bus_id = {};
};

/// A process that holds memory of a GPU, of whatever user.
struct GpuProcess {
  /// In the driver's order, as in ResourceMonitor::gpus().
  int gpu = 0;
  int64_t pid = 0;
  /// The program's name; empty if it cannot be seen (another container's).
  std::string name = {};
  /// -1 where the driver does not tell.
  int64_t used_bytes = -1;
};

/// The driver's libraries, opened with dlopen; where they are missing there are no GPUs.
struct DriverLibraries {
  std::string nvml = "libnvidia-ml.so.1";
  std::string cuda = "libcuda.so.1";
};

/// Reads this process's memory and processor time from /proc, and the GPUs from NVIDIA's driver if its library is
/// there. One thread at a time. A sample takes some microseconds, with GPUs up to a millisecond: not for every step.
class ResourceMonitor {
 public:
  explicit ResourceMonitor(DriverLibraries libraries = {});
  ~ResourceMonitor();

  /// Bytes of memory that this process holds (resident set).
  static int64_t resident_bytes();
  /// Share of its available_cpus() that this process used since the last call (the first: since the start), 0 to 1.
  double cpu_share();
  /// In the driver's order, which CUDA_VISIBLE_DEVICES does not change.
  std::vector<GpuUsage> gpus() const;
  /// Those of LibTorch's devices cuda:N, in the order asked for. They are found by their place on the bus, so
  /// CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER do not matter. One that cannot be told is left out. CUDA is in use.
  std::vector<GpuUsage> gpus_of(const std::vector<int>& cuda_devices) const;
  /// Who holds memory of the GPUs. Empty where the driver does not tell.
  std::vector<GpuProcess> gpu_processes() const;

 private:
  class Nvml;
  std::unique_ptr<Nvml> nvml_;
  std::string cuda_library_;
  int cpus_;
  double wall_seconds_;
  double cpu_seconds_;
};

}  // namespace trainkit
