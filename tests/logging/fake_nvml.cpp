// A driver library with two GPUs, one of which this user may not see. The functions have NVML's names and structures.
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
  memory->free = memory->total - memory->used;
  return device ? 0 : 1;
}
int nvmlDeviceGetUtilizationRates(void* device, Utilization* utilization) {
  utilization->gpu = 87;
  utilization->memory = 12;
  return device ? 0 : 1;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned int* count, Process* processes) {
  if (!device || *count < 2) return 1;
  *count = 2;
  processes[0] = {1, 2ull << 30, 0, 0};
  processes[1] = {4194305, ~0ull, 0, 0};  // beyond the largest number that a process can have
  return 0;
}
}
