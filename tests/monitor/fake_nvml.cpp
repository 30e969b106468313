// A driver library with two GPUs; this user may not access one, the other is cuda:0. The functions have the names and
// structures of NVML and of the CUDA driver. FAKE_NVML_UTILISATION (percent, or "none") and FAKE_NVML_FREE_MIB set its
// answers.
#include <cstdlib>
#include <cstring>

struct Memory {
  unsigned long long total, free, used;
};
struct Utilization {
  unsigned int gpu, memory;
};
struct Process {
  unsigned int pid;
  unsigned long long used;
  unsigned int gpu_instance, compute_instance;
};

struct Pci {
  char bus_id_legacy[16];
  unsigned int domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};

extern "C" {

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetCount_v2(unsigned int* count) { return *count = 2, 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void** device) {
  *device = device;
  return index == 0 ? 4 : 0;  // NVML_ERROR_NO_PERMISSION
}
int nvmlDeviceGetName(void* device, char* name, unsigned int length) {
  const char text[] = "Pretend 9000";
  for (unsigned int i = 0; i < sizeof text && i < length; ++i) name[i] = text[i];
  return device ? 0 : 1;
}
int nvmlDeviceGetMemoryInfo(void* device, Memory* memory) {
  memory->total = 24ull << 30;
  memory->used = 3ull << 30;
  if (const char* free = std::getenv("FAKE_NVML_FREE_MIB")) memory->used = memory->total - (std::atoll(free) << 20);
  memory->free = memory->total - memory->used;
  return device ? 0 : 1;
}
int nvmlDeviceGetUtilizationRates(void* device, Utilization* utilization) {
  const char* planted = std::getenv("FAKE_NVML_UTILISATION");
  utilization->gpu = planted ? static_cast<unsigned int>(std::atoi(planted)) : 87;
  utilization->memory = 12;
  if (planted && std::strcmp(planted, "none") == 0) return 3;  // NVML_ERROR_NOT_SUPPORTED
  return device ? 0 : 1;
}
int nvmlDeviceGetPciInfo_v3(void* device, Pci* pci) {
  std::strcpy(pci->bus_id, "00000000:81:00.0");
  return device ? 0 : 1;
}
int cuDeviceGetPCIBusId(char* text, int length, int device) {
  if (length < 13 || device != 0) return 101;  // CUDA_ERROR_INVALID_DEVICE
  std::strcpy(text, "0000:81:00.0");
  return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned int* count, Process* processes) {
  if (!device || *count < 2) return 1;
  *count = 2;
  processes[0] = {1, 2ull << 30, 0, 0};
  processes[1] = {4194305, ~0ull, 0, 0};  // beyond the largest valid process id
  return 0;
}
}
