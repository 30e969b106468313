#include "monitor/resource_monitor.h"

#include <absl/strings/match.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>

namespace trainkit {
namespace {

/// Returns the PCI bus id of cuda:`device` from the CUDA driver ("0000:01:00.0"). Empty if the driver does not report
/// it.
std::string bus_id_of(const std::string& library, int device) {
  void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) return "";
  int (*bus_id)(char*, int, int) = nullptr;
  bus_id = reinterpret_cast<decltype(bus_id)>(::dlsym(handle, "cuDeviceGetPCIBusId"));
  char text[32] = "";
  if (!bus_id || bus_id(text, sizeof text, device) != 0) text[0] = '\0';
  ::dlclose(handle);
  return text;
}

/// Whether two texts are the same PCI bus id. The domain has four or eight digits; case is ignored.
bool same_place(const std::string& a, const std::string& b) {
  return std::min(a.size(), b.size()) >= 12 && (absl::EndsWithIgnoreCase(a, b) || absl::EndsWithIgnoreCase(b, a));
}

}  // namespace

/// The NVML functions used here, with the structures of its ABI.
///
/// Source: nvml.h of the CUDA toolkit (nvmlMemory_t, nvmlUtilization_t, nvmlProcessInfo_t, nvmlPciInfo_t; the _v2 and
/// _v3 entry points).
class ResourceMonitor::Nvml {
 public:
  static std::unique_ptr<Nvml> open(const std::string& library) {
    void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle) return nullptr;
    auto nvml = std::unique_ptr<Nvml>(new Nvml(handle));
    return nvml->load() ? std::move(nvml) : nullptr;
  }
  ~Nvml() {
    if (started_) shutdown_();
    ::dlclose(handle_);
  }

  std::vector<GpuUsage> gpus() const {
    std::vector<GpuUsage> all;
    unsigned int count = 0;
    if (count_(&count) != 0) return all;
    for (unsigned int i = 0; i < count; ++i) {
      Device device = nullptr;
      char name[96] = "";
      Memory memory{};
      Utilization utilization{};
      if (device_(i, &device) != 0 || memory_(device, &memory) != 0) continue;  // no permission for this GPU
      if (name_(device, name, sizeof name) != 0) name[0] = '\0';
      const bool known = utilization_(device, &utilization) == 0;
      Pci pci{};
      if (!pci_ || pci_(device, &pci) != 0) pci.bus_id[0] = '\0';
      all.push_back({.name = name,
                     .used_bytes = static_cast<int64_t>(memory.used),
                     .total_bytes = static_cast<int64_t>(memory.total),
                     .utilization = known ? utilization.gpu / 100.0 : -1,
                     .pci_bus_id = pci.bus_id});
    }
    return all;
  }

  std::vector<GpuProcess> processes() const {
    std::vector<GpuProcess> all;
    unsigned int gpus = 0;
    if (!processes_ || count_(&gpus) != 0) return all;
    for (unsigned int i = 0; i < gpus; ++i) {
      Device device = nullptr;
      std::array<Process, 256> found{};
      unsigned int count = found.size();
      if (device_(i, &device) != 0 || processes_(device, &count, found.data()) != 0) continue;
      for (unsigned int k = 0; k < count; ++k) {
        std::string name;
        std::getline(std::ifstream(fmt::format("/proc/{}/comm", found[k].pid)), name);
        const bool known = found[k].used != ~0ull;  // NVML_VALUE_NOT_AVAILABLE
        all.push_back({.gpu = static_cast<int>(i),
                       .pid = found[k].pid,
                       .name = name,
                       .used_bytes = known ? static_cast<int64_t>(found[k].used) : -1});
      }
    }
    return all;
  }

 private:
  using Device = void*;
  struct Process {
    unsigned int pid;
    unsigned long long used;
    unsigned int gpu_instance, compute_instance;
  };
  struct Memory {
    unsigned long long total, free, used;
  };
  struct Utilization {
    unsigned int gpu, memory;
  };
  struct Pci {
    char bus_id_legacy[16];
    unsigned int domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
  };

  explicit Nvml(void* handle) : handle_(handle) {}

  template <class Function>
  bool find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(handle_, name));
    return function != nullptr;
  }
  bool load() {
    int (*start)() = nullptr;
    started_ = find(start, "nvmlInit_v2") && find(shutdown_, "nvmlShutdown") && find(count_, "nvmlDeviceGetCount_v2") &&
               find(device_, "nvmlDeviceGetHandleByIndex_v2") && find(name_, "nvmlDeviceGetName") &&
               find(memory_, "nvmlDeviceGetMemoryInfo") && find(utilization_, "nvmlDeviceGetUtilizationRates") &&
               start() == 0;
    find(processes_, "nvmlDeviceGetComputeRunningProcesses_v3");  // missing in drivers before 510
    find(pci_, "nvmlDeviceGetPciInfo_v3");
    return started_;
  }

  void* handle_;
  bool started_ = false;
  int (*shutdown_)() = nullptr;
  int (*count_)(unsigned int*) = nullptr;
  int (*device_)(unsigned int, Device*) = nullptr;
  int (*name_)(Device, char*, unsigned int) = nullptr;
  int (*memory_)(Device, Memory*) = nullptr;
  int (*utilization_)(Device, Utilization*) = nullptr;
  int (*processes_)(Device, unsigned int*, Process*) = nullptr;
  int (*pci_)(Device, Pci*) = nullptr;
};

ResourceMonitor::ResourceMonitor(DriverLibraries libraries)
    : nvml_(Nvml::open(libraries.nvml)), cuda_library_(std::move(libraries.cuda)) {}
ResourceMonitor::~ResourceMonitor() = default;

int64_t ResourceMonitor::resident_bytes() {
  int64_t size = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

std::vector<GpuUsage> ResourceMonitor::gpus() const { return nvml_ ? nvml_->gpus() : std::vector<GpuUsage>{}; }

std::vector<GpuProcess> ResourceMonitor::gpu_processes() const {
  return nvml_ ? nvml_->processes() : std::vector<GpuProcess>{};
}

std::vector<GpuUsage> ResourceMonitor::gpus_of(const std::vector<int>& cuda_devices) const {
  const std::vector<GpuUsage> all = cuda_devices.empty() ? std::vector<GpuUsage>{} : gpus();
  std::vector<GpuUsage> found;
  for (const int device : cuda_devices) {
    const std::string place = bus_id_of(cuda_library_, device);
    const auto it =
        std::find_if(all.begin(), all.end(), [&](const GpuUsage& gpu) { return same_place(gpu.pci_bus_id, place); });
    if (it != all.end()) found.push_back(*it);
  }
  return found;
}

}  // namespace trainkit
