// libnvidia-ml.so.1 of the simulated device: the NVML functions that the resource monitor and LibTorch use.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>

// Source of the types: nvml.h of the CUDA toolkit.
using nvmlReturn_t = int;
using nvmlDevice_t = void*;
struct nvmlMemory_t {
  unsigned long long total, free, used;
};
struct nvmlUtilization_t {
  unsigned gpu, memory;
};
struct nvmlProcessInfo_t {
  unsigned pid;
  unsigned long long usedGpuMemory;
  unsigned gpuInstanceId, computeInstanceId;
};
struct nvmlPciInfo_t {
  char busIdLegacy[16];
  unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
  char busId[32];
};
constexpr nvmlReturn_t NVML_SUCCESS = 0, NVML_ERROR_NOT_SUPPORTED = 3, NVML_ERROR_NOT_FOUND = 6,
                       NVML_ERROR_INSUFFICIENT_SIZE = 7;

namespace {

struct Memory {
  size_t used = 0, total = 0;
};

/// Of this process's simulated runtime.
Memory memory_of(unsigned device) {
  Memory memory;
  using Ask = int (*)(int, size_t*, size_t*);
  if (auto* ask = reinterpret_cast<Ask>(dlsym(RTLD_DEFAULT, "cuda_sim_memory"))) {
    ask(static_cast<int>(device), &memory.used, &memory.total);
  }
  return memory;
}

unsigned count() {
  auto* ask = reinterpret_cast<int (*)(int*)>(dlsym(RTLD_DEFAULT, "cudaGetDeviceCount"));
  int devices = 0;
  return ask && ask(&devices) == 0 ? static_cast<unsigned>(devices) : 0;
}

/// PCI bus of CUDA's device; 0 if there is none.
unsigned bus_of(unsigned device) {
  auto* ask = reinterpret_cast<int (*)(char*, int, int)>(dlsym(RTLD_DEFAULT, "cudaDeviceGetPCIBusId"));
  char text[32] = "";
  unsigned domain = 0, bus = 0;
  const bool is_known = ask && ask(text, sizeof text, static_cast<int>(device)) == 0;
  return is_known && sscanf(text, "%x:%x", &domain, &bus) == 2 ? bus : 0;
}

/// CUDA's number of a device.
unsigned index_of(nvmlDevice_t device) { return static_cast<unsigned>(reinterpret_cast<uintptr_t>(device)) - 1; }

nvmlDevice_t handle_of(unsigned device) { return reinterpret_cast<nvmlDevice_t>(static_cast<uintptr_t>(device) + 1); }

}  // namespace

extern "C" {
nvmlReturn_t nvmlInit_v2() { return NVML_SUCCESS; }
nvmlReturn_t nvmlShutdown() { return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned* devices) { return *devices = count(), NVML_SUCCESS; }

/// NVML counts devices by PCI bus, which may differ from CUDA's order.
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t* device) {
  for (unsigned i = 0; i < count(); ++i) {
    unsigned before = 0;
    for (unsigned k = 0; k < count(); ++k) before += bus_of(k) < bus_of(i);
    if (before == index) return *device = handle_of(i), NVML_SUCCESS;
  }
  return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char* text, nvmlDevice_t* device) {
  unsigned domain = 0, bus = 0;
  if (sscanf(text, "%x:%x", &domain, &bus) != 2) return NVML_ERROR_NOT_FOUND;
  for (unsigned i = 0; i < count(); ++i) {
    if (bus_of(i) == bus) return *device = handle_of(i), NVML_SUCCESS;
  }
  return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t, char* name, unsigned size) {
  return snprintf(name, size, "Simulated GPU"), NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  const Memory found = memory_of(index_of(device));
  *memory = {found.total, found.total - found.used, found.used};
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t, nvmlUtilization_t* rates) {
  return *rates = {0, 0}, NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned* many,
                                                     nvmlProcessInfo_t* processes) {
  if (*many < 1) return *many = 1, NVML_ERROR_INSUFFICIENT_SIZE;
  *many = 1;
  memset(processes, 0, sizeof *processes);
  processes->pid = static_cast<unsigned>(getpid());
  processes->usedGpuMemory = memory_of(index_of(device)).used;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  memset(pci, 0, sizeof *pci);
  pci->bus = bus_of(index_of(device));
  snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0", pci->bus);
  snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "0000:%02X:00.0", pci->bus);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned* many, nvmlProcessInfo_t* processes) {
  return nvmlDeviceGetComputeRunningProcesses_v3(device, many, processes);
}
nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t, unsigned, int*) { return NVML_ERROR_NOT_SUPPORTED; }
nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t, unsigned, nvmlPciInfo_t*) {
  return NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int* version) { return *version = 13000, NVML_SUCCESS; }
const char* nvmlErrorString(nvmlReturn_t) { return "an error of the simulated NVML"; }
}
