#include "fake_device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <map>

namespace {

constexpr int kDevices = 2;
constexpr size_t kBytes = size_t{256} << 20, kAlignment = 512;
constexpr size_t kHostBytes = 256;  // host memory before the first allocation, in the same page

struct Space {
  char* addresses;
  char* bytes;
  size_t used = kAlignment;
  std::map<uintptr_t, size_t> blocks;

  Space() {
    const int file = memfd_create("fake_device", 0);
    if (ftruncate(file, kBytes) != 0) abort();
    addresses = static_cast<char*>(mmap(nullptr, kBytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file, 0));
    bytes = static_cast<char*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0));
    close(file);
  }
};

Space& space(int device) {
  static auto* const spaces = new Space[kDevices];
  return spaces[device];
}

struct Configuration {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
} configuration;

std::map<const void*, std::string>& names() {
  static auto* const all = new std::map<const void*, std::string>;
  return *all;
}

cudaError_t last_error = cudaSuccess;

}  // namespace

namespace fake {

std::vector<Finding>& findings() {
  static auto* const all = new std::vector<Finding>;
  return *all;
}

std::vector<std::pair<std::string, cuda_sim::Outcome>>& outcomes() {
  static auto* const all = new std::vector<std::pair<std::string, cuda_sim::Outcome>>;
  return *all;
}

std::vector<std::string>& registered() {
  static auto* const all = new std::vector<std::string>;
  return *all;
}

void* allocate(size_t bytes, int device) {
  Space& from = space(device);
  char* const address = from.addresses + from.used;
  if (from.used + bytes + kAlignment > kBytes) abort();
  from.used += (bytes + 2 * kAlignment - 1) / kAlignment * kAlignment;
  from.blocks[reinterpret_cast<uintptr_t>(address)] = bytes;
  memset(cuda_sim::backing(address), 0xff, bytes);
  return address;
}

void free_all() {
  for (int i = 0; i < kDevices; ++i) {
    space(i).blocks.clear();
    space(i).used = kAlignment;
  }
}

void* bytes_of(const void* address) { return cuda_sim::backing(address); }

const cuda_sim::Kernel* find(const std::string& mangled_name) { return cuda_sim::find_kernel(mangled_name); }

}  // namespace fake

namespace cuda_sim {

int device_of(const void* address) {
  for (int i = 0; i < kDevices; ++i) {
    if (address >= space(i).addresses && address < space(i).addresses + kBytes) return i;
  }
  return -1;
}

void* backing(const void* address) {
  const int device = device_of(address);
  return device < 0 ? nullptr : space(device).bytes + (static_cast<const char*>(address) - space(device).addresses);
}

const void* device_address(const void* backing) {
  for (int i = 0; i < kDevices; ++i) {
    const char* const bytes = space(i).bytes;
    if (backing >= bytes + kHostBytes && backing < bytes + kBytes)
      return space(i).addresses + (static_cast<const char*>(backing) - bytes);
  }
  return nullptr;
}

size_t bytes_left(const void* address) {
  const int device = device_of(address);
  if (device < 0) return 0;
  const auto at = reinterpret_cast<uintptr_t>(address);
  auto block = space(device).blocks.upper_bound(at);
  if (block == space(device).blocks.begin()) return 0;
  --block;
  return at < block->first + block->second ? block->first + block->second - at : 0;
}

void finding(const std::string& kind, const std::string& text) { fake::findings().push_back({kind, text}); }

const char* setting(const char* name, const char* otherwise) {
  const char* const value = getenv((std::string("CUDA_SIM_") + name).c_str());
  return value ? value : otherwise;
}

long setting(const char* name, long otherwise) {
  const char* const value = setting(name, static_cast<const char*>(nullptr));
  return value ? atol(value) : otherwise;
}

}  // namespace cuda_sim

extern "C" {

FAKE_EXPORT void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
FAKE_EXPORT void __cudaRegisterFatBinaryEnd(void**) {}
FAKE_EXPORT char __cudaInitModule(void**) { return 1; }
FAKE_EXPORT void __cudaUnregisterFatBinary(void**) {}
FAKE_EXPORT void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*,
                                        dim3*, int*) {
  names()[host] = name;
  fake::registered().push_back(name);
}

FAKE_EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, CUstream_st* stream) {
  configuration = {grid, block, shared, stream};
  return 0;
}

FAKE_EXPORT cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  *grid = configuration.grid;
  *block = configuration.block;
  *shared = configuration.shared;
  *static_cast<cudaStream_t*>(stream) = configuration.stream;
  return cudaSuccess;
}

FAKE_EXPORT cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}

FAKE_EXPORT cudaError_t __cudaLaunchKernel(cudaKernel_t function, dim3 grid, dim3 block, void** arguments,
                                           size_t shared, cudaStream_t) {
  const cuda_sim::Kernel* kernel = cuda_sim::find_kernel(names().at(function));
  if (!kernel) return last_error = cudaErrorInvalidDeviceFunction;
  cuda_sim::Launch launch{grid, block, shared, 0, {}};
  for (size_t i = 0; i < kernel->argument_bytes.size(); ++i) {
    const auto* bytes = static_cast<const std::byte*>(arguments[i]);
    launch.arguments.emplace_back(bytes, bytes + kernel->argument_bytes[i]);
  }
  fake::outcomes().emplace_back(kernel->name, kernel->run(*kernel, launch));
  return cudaSuccess;
}

FAKE_EXPORT cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }

}  // extern "C"
