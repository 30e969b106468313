// Properties of the simulated devices, and errors.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "state.h"

namespace cuda_sim {
namespace {

thread_local cudaError_t last_error = cudaSuccess;
std::atomic<cudaError_t> kernel_error{cudaSuccess};

int capability() {
  static const long value = setting("CC", 90L);  // an H100; 89: RTX 4090
  return static_cast<int>(value);
}

/// PCI buses of the devices: CUDA_SIM_PCI=41,c1 in hexadecimal; without it 1, 2, ...
const std::vector<unsigned>& pci_buses() {
  static auto* const buses = [] {
    auto* all = new std::vector<unsigned>;
    std::istringstream list(setting("PCI", ""));
    for (std::string bus; std::getline(list, bus, ',');) {
      all->push_back(static_cast<unsigned>(strtoul(bus.c_str(), nullptr, 16)));
    }
    for (int i = static_cast<int>(all->size()); i < device_count(); ++i) all->push_back(static_cast<unsigned>(i) + 1);
    return all;
  }();
  return *buses;
}

}  // namespace

cudaError_t fail(cudaError_t error) { return last_error = error; }
cudaError_t sticky_error() { return kernel_error.load(); }
void set_sticky_error(cudaError_t error) { kernel_error = error; }

}  // namespace cuda_sim

using namespace cuda_sim;

extern "C" {

cudaError_t cudaDriverGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = 13000, cudaSuccess; }

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  if (device < 0 || device >= device_count()) return fail(cudaErrorInvalidDevice);
  memset(p, 0, sizeof *p);
  snprintf(p->name, sizeof p->name, "%s", setting("NAME", "Simulated GPU"));
  p->uuid.bytes[0] = static_cast<char>(device + 1);
  p->major = capability() / 10;
  p->minor = capability() % 10;
  p->totalGlobalMem = device_bytes();
  p->pciBusID = static_cast<int>(pci_buses()[static_cast<size_t>(device)]);
  p->multiProcessorCount = 132;
  p->warpSize = 32;
  p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->maxThreadsPerMultiProcessor = 2048;
  p->sharedMemPerBlock = 49152;
  p->sharedMemPerMultiprocessor = 233472;
  p->sharedMemPerBlockOptin = 232448;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->l2CacheSize = 50 << 20;
  p->memoryBusWidth = 5120;
  p->asyncEngineCount = 3;
  p->concurrentKernels = p->unifiedAddressing = p->canMapHostMemory = 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp p;
  if (const cudaError_t error = cudaGetDeviceProperties(&p, device)) return error;
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = p.multiProcessorCount;
      break;
    case cudaDevAttrMaxThreadsPerBlock:
      *value = p.maxThreadsPerBlock;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = p.major;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = p.minor;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = static_cast<int>(p.sharedMemPerBlock);
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(p.sharedMemPerBlockOptin);
      break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = static_cast<int>(p.sharedMemPerMultiprocessor);
      break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = p.maxThreadsPerMultiProcessor;
      break;
    case cudaDevAttrWarpSize:
      *value = p.warpSize;
      break;
    case cudaDevAttrL2CacheSize:
      *value = p.l2CacheSize;
      break;
    case cudaDevAttrMemoryClockRate:
      *value = 2619000;  // kHz
      break;
    case cudaDevAttrGlobalMemoryBusWidth:
      *value = p.memoryBusWidth;
      break;
    case cudaDevAttrPciBusId:
      *value = p.pciBusID;
      break;
    default:
      *value = 0;
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
  if (device < 0 || device >= device_count()) return fail(cudaErrorInvalidDevice);
  snprintf(text, static_cast<size_t>(size), "0000:%02x:00.0", pci_buses()[static_cast<size_t>(device)]);
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { return *can = setting("PEERS", 0L) != 0, cudaSuccess; }
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  if (const cudaError_t sticky = sticky_error()) return sticky;
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError() { return sticky_error() ? sticky_error() : last_error; }

#define CUDA_SIM_ERRORS(_)                                                                                          \
  _(cudaSuccess, "no error")                                                                                        \
  _(cudaErrorInvalidValue, "invalid argument")                                                                      \
  _(cudaErrorMemoryAllocation, "out of memory")                                                                     \
  _(cudaErrorInvalidDevice, "invalid device ordinal")                                                               \
  _(cudaErrorNoDevice, "no CUDA-capable device is detected")                                                        \
  _(cudaErrorInvalidResourceHandle, "invalid resource handle")                                                      \
  _(cudaErrorIllegalState, "the operation cannot be performed in the present state")                                \
  _(cudaErrorIllegalAddress, "an illegal memory access was encountered")                                            \
  _(cudaErrorLaunchFailure, "unspecified launch failure")                                                           \
  _(cudaErrorAssert, "device-side assert triggered")                                                                \
  _(cudaErrorNotReady, "device not ready")                                                                          \
  _(cudaErrorNotSupported, "operation not supported")                                                               \
  _(cudaErrorHostMemoryNotRegistered, "pointer does not correspond to a registered memory region")                  \
  _(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing")                          \
  _(cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture")                   \
  _(cudaErrorStreamCaptureMerge, "operation would result in a merge of separate capture sequences")                 \
  _(cudaErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began")                        \
  _(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work")                                           \
  _(cudaErrorStreamCaptureIsolation, "dependency created on uncaptured work in another stream")                     \
  _(cudaErrorStreamCaptureImplicit, "operation would make the legacy stream depend on a capturing blocking stream") \
  _(cudaErrorCapturedEvent, "operation not permitted on an event last recorded in a capturing stream")              \
  _(cudaErrorStreamCaptureWrongThread, "attempt to terminate a thread-local capture sequence from another thread")

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
#define CUDA_SIM_NAME(name, text) \
  case name:                      \
    return #name;
    CUDA_SIM_ERRORS(CUDA_SIM_NAME)
    default:
      return "cudaErrorUnknown";
  }
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
#define CUDA_SIM_TEXT(name, text) \
  case name:                      \
    return text;
    CUDA_SIM_ERRORS(CUDA_SIM_TEXT)
    default:
      return "unknown error";
  }
}

// The driver's functions, which LibTorch looks up by name.
static int not_supported() { return 801; }  // CUDA_ERROR_NOT_SUPPORTED
static int success() { return 0; }
static int context_state(int, unsigned* flags, int* is_active) { return *flags = 0, *is_active = 1, 0; }
static int current_context(void** context) { return *context = reinterpret_cast<void*>(1), 0; }

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  const std::string wanted = name;
  if (wanted == "cuDevicePrimaryCtxGetState") {
    *function = reinterpret_cast<void*>(context_state);
  } else if (wanted == "cuCtxGetCurrent") {
    *function = reinterpret_cast<void*>(current_context);
  } else if (wanted == "cuInit") {
    *function = reinterpret_cast<void*>(success);
  } else {
    *function = reinterpret_cast<void*>(not_supported);
  }
  if (result) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

}  // extern "C"
