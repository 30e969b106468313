// libcuda.so.1 of the simulated device: LibTorch opens it and uses a few functions; doctor asks for names and peer
// access.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

namespace {

constexpr int kInvalidDevice = 101;

/// A function of the preloaded runtime.
template <typename F>
F* runtime(const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_DEFAULT, name));
}

bool is_device(int device) {
  auto* const ask = runtime<int(int*)>("cudaGetDeviceCount");
  int devices = 0;
  return ask && ask(&devices) == 0 && device >= 0 && device < devices;
}

}  // namespace

extern "C" {
int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int* version) { return *version = 13000, 0; }
int cuGetErrorString(int, const char** text) { return *text = "an error of the simulated driver", 0; }
int cuCtxGetCurrent(void** context) { return *context = reinterpret_cast<void*>(1), 0; }
int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* is_active) { return *flags = 0, *is_active = 1, 0; }

int cuDeviceGetName(char* name, int size, int device) {
  if (!is_device(device)) return kInvalidDevice;
  const char* text = getenv("CUDA_SIM_NAME");
  return snprintf(name, static_cast<size_t>(size), "%s", text ? text : "Simulated GPU"), 0;
}

int cuDeviceGetPCIBusId(char* text, int size, int device) {
  auto* const ask = runtime<int(char*, int, int)>("cudaDeviceGetPCIBusId");
  return ask && is_device(device) ? ask(text, size, device) : kInvalidDevice;
}

int cuDeviceCanAccessPeer(int* can, int device, int peer) {
  auto* const ask = runtime<int(int*, int, int)>("cudaDeviceCanAccessPeer");
  if (!ask || !is_device(device) || !is_device(peer)) return kInvalidDevice;
  return ask(can, device, peer);
}
}
