// Kernels: ours run here from their own sources (kernels.h); LibTorch's do nothing, because the CPU counterpart of the
// operation that launches them computes (numbers.cpp).
#include <atomic>
#include <cstring>
#include <map>
#include <utility>

#include "state.h"

namespace cuda_sim {
namespace {

thread_local uint64_t launches = 0;
thread_local bool is_in_operation = false;

struct Variable {
  size_t bytes;
  std::map<int, void*> places;  // by device
};

std::map<const void*, std::string>& kernel_names() {
  static auto* const names = new std::map<const void*, std::string>;
  return *names;
}

std::map<const void*, Variable>& variables() {
  static auto* const made = new std::map<const void*, Variable>;
  return *made;
}

std::string name_of(const void* function) {
  const std::lock_guard lock(api_mutex());
  const auto name = kernel_names().find(function);
  return name == kernel_names().end() ? "?" : name->second;
}

/// Our kernel for a host function; nullptr if it is LibTorch's.
const Kernel* kernel_of(const void* function) {
  static auto* const found = new std::map<const void*, const Kernel*>;
  static auto* const mutex = new std::mutex;
  const std::lock_guard lock(*mutex);
  const auto [place, is_new] = found->try_emplace(function, nullptr);
  if (is_new) place->second = find_kernel(name_of(function));
  return place->second;
}

/// Returns whether this is the launch that CUDA_SIM_FAIL_LAUNCH names, or the first after it: counts include launches
/// of the libraries, which do not fail.
bool launch_fails(uint64_t n) {
  static std::atomic<bool> has_failed = false;
  const long wanted = setting("FAIL_LAUNCH", 0L);
  return wanted > 0 && n >= static_cast<uint64_t>(wanted) && !has_failed.exchange(true);
}

cudaError_t launch(const void* function, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t stream) {
  CUDA_SIM_ENTER();
  const uint64_t n = ++counts().launches;
  if (launch_fails(n)) {
    return enqueue(stream, "a failing kernel", {}, [] { set_sticky_error(cudaErrorIllegalAddress); });
  }
  if (!computes()) return ++launches, cudaSuccess;
  const Kernel* kernel = kernel_of(function);
  if (!kernel) {
    ++launches;
    if (!is_in_operation) {
      finding("launch",
              "a kernel is launched outside an operation, so that its numbers are not computed: " + name_of(function));
    }
    return enqueue(stream, name_of(function), {}, [] {});
  }
  Launch made{grid, block, shared, device_of_stream(stream), {}};
  if (made.device != current_device()) return fail(cudaErrorInvalidResourceHandle);
  for (size_t i = 0; i < kernel->argument_bytes.size(); ++i) {
    const auto* bytes = static_cast<const std::byte*>(arguments[i]);
    made.arguments.emplace_back(bytes, bytes + kernel->argument_bytes[i]);
  }
  return enqueue_work(stream, {kernel->name,
                               {},
                               [kernel, made = std::move(made)](std::vector<Access>& late) {
                                 Outcome outcome = kernel->run(*kernel, made);
                                 if (outcome.error != cudaSuccess) set_sticky_error(outcome.error);
                                 late = std::move(outcome.accesses);
                               },
                               true});
}

}  // namespace

bool computes() {
  static const bool does = setting("NUMBERS", 1L) != 0;
  return does;
}

void count_launch(const char* name) {
  ++launches;
  ++counts().launches;
  if (!is_in_operation && computes()) finding("launch", std::string(name) + " is called outside an operation");
}

uint64_t launches_of_this_thread() { return launches; }

bool set_in_operation(bool value) { return std::exchange(is_in_operation, value); }

}  // namespace cuda_sim

using namespace cuda_sim;

extern "C" {

struct Configuration {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
};
static thread_local Configuration configuration;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st* stream) {
  configuration = {grid, block, shared, stream};
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  *grid = configuration.grid;
  *block = configuration.block;
  *shared = configuration.shared;
  *static_cast<cudaStream_t*>(stream) = configuration.stream;
  return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments, size_t shared,
                             cudaStream_t stream) {
  return launch(function, grid, block, arguments, shared, stream);
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared,
                               cudaStream_t stream) {
  return launch(kernel, grid, block, arguments, shared, stream);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* c, const void* function, void** arguments) {
  return launch(function, c->gridDim, c->blockDim, arguments, c->dynamicSmemBytes, c->stream);
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}

void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}

void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, void*, void*, void*, void*, int*) {
  const std::lock_guard lock(api_mutex());
  kernel_names()[host] = name;
}

void __cudaRegisterVar(void**, char* host, char*, const char*, int, size_t bytes, int, int) {
  const std::lock_guard lock(api_mutex());
  variables()[host] = {bytes, {}};
}

cudaError_t cudaGetSymbolAddress(void** address, const void* symbol) {
  CUDA_SIM_ENTER();
  const auto variable = variables().find(symbol);
  if (variable == variables().end()) return fail(cudaErrorInvalidSymbol);
  void*& place = variable->second.places[current_device()];
  if (!place) {
    if (const cudaError_t error = cudaMalloc(&place, variable->second.bytes)) return error;
  }
  *address = place;
  return cudaSuccess;
}

cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* from, size_t bytes, size_t offset, cudaMemcpyKind kind) {
  void* place = nullptr;
  if (const cudaError_t error = cudaGetSymbolAddress(&place, symbol)) return error;
  return cudaMemcpy(static_cast<char*>(place) + offset, from, bytes, kind);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  CUDA_SIM_ENTER();
  memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024;
  attributes->binaryVersion = attributes->ptxVersion = static_cast<int>(setting("CC", 90L));
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return sticky_error(); }

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int, size_t, unsigned) {
  CUDA_SIM_ENTER();
  return *blocks = 4, cudaSuccess;
}

}  // extern "C"
