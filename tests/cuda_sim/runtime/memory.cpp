// Device memory. A device's addresses, which programs see, are reserved without permissions; the bytes behind them lie
// in a mapping of the simulation itself (backing()), in huge pages where the system has them. New memory is filled with
// 0xff, which is NaN; where kernels do not compute, it is 0 and takes no pages until it is written.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "state.h"

namespace cuda_sim {
namespace {

constexpr size_t kAlignment = 512;
constexpr size_t kPage = 4096;
constexpr size_t kHugePage = 2 << 20;
constexpr size_t kLowHalf = size_t{1} << 32;
constexpr int kMostDevices = 8;

size_t rounded(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

/// One device's memory.
struct Space {
  char* addresses = nullptr;
  char* bytes = nullptr;
  size_t size = 0;
  size_t used = 0;
  std::map<uintptr_t, size_t> blocks;  // by address
  std::map<uintptr_t, size_t> gaps;    // free ranges between blocks

  explicit Space(size_t wanted) : size(wanted) {
    const size_t reserved = 2 * size;  // gaps between blocks must not exhaust the address range
    // The bytes are a multiple of 4 GiB behind the addresses. A kernel's argument may have a number next to padding
    // that was part of an address, and both together look like an address. Its translation then leaves the number as it
    // is.
    const size_t distance = rounded(reserved, kLowHalf);
    void* const start =
        mmap(nullptr, distance + reserved + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) abort();
    addresses = reinterpret_cast<char*>(rounded(reinterpret_cast<uintptr_t>(start), kHugePage));
    bytes = addresses + distance;
    if (mprotect(bytes, reserved, PROT_READ | PROT_WRITE) != 0) abort();
    madvise(bytes, reserved, MADV_HUGEPAGE);  // where it fails, pages are small
    gaps[reinterpret_cast<uintptr_t>(addresses)] = reserved;
  }

  char* bytes_of(uintptr_t address) const { return bytes + (address - reinterpret_cast<uintptr_t>(addresses)); }

  bool holds(const void* p) const { return p >= addresses && p < addresses + 2 * size; }

  void* allocate(size_t wanted) {
    const size_t taken = rounded(wanted, kAlignment);
    if (used + taken > std::min(size, device_bytes())) return nullptr;
    for (auto gap = gaps.begin(); gap != gaps.end(); ++gap) {
      if (gap->second < taken) continue;
      const uintptr_t at = gap->first;
      const size_t left = gap->second - taken;
      gaps.erase(gap);
      if (left > 0) gaps[at + taken] = left;
      blocks[at] = wanted;
      used += taken;
      if (computes()) {
        memset(bytes_of(at), 0xff, taken);
      } else {
        clear_edges(at, taken);
      }
      return reinterpret_cast<void*>(at);
    }
    return nullptr;
  }

  /// Free whole pages are 0; those that the range shares with others are not.
  void clear_edges(uintptr_t at, size_t size) const {
    const uintptr_t begin = std::min(rounded(at, kPage), at + size);
    const uintptr_t end = std::max((at + size) / kPage * kPage, begin);
    memset(bytes_of(at), 0, begin - at);
    memset(bytes_of(end), 0, at + size - end);
  }

  /// Returns the size of the freed block; 0 if it is not an allocation.
  size_t free(void* p) {
    const auto block = blocks.find(reinterpret_cast<uintptr_t>(p));
    if (block == blocks.end()) return 0;
    const size_t had = block->second, taken = rounded(had, kAlignment);
    const uintptr_t at = block->first;
    blocks.erase(block);
    used -= taken;
    auto [gap, unused] = gaps.emplace(at, taken);
    if (auto next = std::next(gap); next != gaps.end() && gap->first + gap->second == next->first) {
      gap->second += next->second;
      gaps.erase(next);
    }
    if (gap != gaps.begin()) {
      auto before = std::prev(gap);
      if (before->first + before->second == gap->first) {
        before->second += gap->second;
        gaps.erase(gap);
        gap = before;
      }
    }
    if (computes() && taken < kHugePage) return had;  // filled again when it is allocated
    // Whole pages go back to the system, those that the block shared with free neighbours too.
    const uintptr_t begin = std::max(rounded(gap->first, kPage), at / kPage * kPage);
    const uintptr_t end = std::min(gap->first + gap->second, rounded(at + taken, kPage)) / kPage * kPage;
    if (end > begin) madvise(bytes_of(begin), end - begin, MADV_DONTNEED);
    return had;
  }
};

std::vector<Space*>& spaces() {
  static auto* const all = [] {
    auto* made = new std::vector<Space*>;
    for (int i = 0; i < device_count(); ++i) made->push_back(new Space(device_bytes()));
    return made;
  }();
  return *all;
}

std::map<uintptr_t, HostBlock>& host_blocks() {
  static auto* const blocks = new std::map<uintptr_t, HostBlock>;
  return *blocks;
}

/// Returns whether this allocation should fail: CUDA_SIM_FAIL_MALLOC=n, or n:m for m allocations in a row.
bool allocation_fails(uint64_t n) {
  const char* text = setting("FAIL_MALLOC");
  if (!text) return false;
  char* rest = nullptr;
  const auto first = static_cast<uint64_t>(strtoll(text, &rest, 10));
  const uint64_t many = *rest == ':' ? static_cast<uint64_t>(strtoll(rest + 1, nullptr, 10)) : 1;
  return n >= first && n < first + many;
}

}  // namespace

std::mutex& api_mutex() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}

int device_count() {
  static const long count = setting("DEVICES", 1);
  return static_cast<int>(count < 0 ? 0 : count > kMostDevices ? kMostDevices : count);
}

size_t device_bytes() { return static_cast<size_t>(setting("MEMORY_MB", 8192L)) << 20; }

int device_of(const void* address) {
  for (size_t i = 0; i < spaces().size(); ++i) {
    if (spaces()[i]->holds(address)) return static_cast<int>(i);
  }
  return -1;
}

void* backing(const void* address) {
  const int device = device_of(address);
  if (device < 0) return nullptr;
  const Space& space = *spaces()[static_cast<size_t>(device)];
  return space.bytes + (static_cast<const char*>(address) - space.addresses);
}

const void* device_address(const void* backed) {
  for (const Space* space : spaces()) {
    if (backed >= space->bytes && backed < space->bytes + 2 * space->size) {
      return space->addresses + (static_cast<const char*>(backed) - space->bytes);
    }
  }
  return nullptr;
}

size_t bytes_left(const void* address) {
  const int device = device_of(address);
  if (device < 0) return 0;
  const std::lock_guard lock(api_mutex());
  const auto& blocks = spaces()[static_cast<size_t>(device)]->blocks;
  auto block = blocks.upper_bound(reinterpret_cast<uintptr_t>(address));
  if (block == blocks.begin()) return 0;
  --block;
  const uintptr_t end = block->first + block->second, at = reinterpret_cast<uintptr_t>(address);
  return at < end ? end - at : 0;
}

bool is_device_range(const void* address, size_t bytes) { return bytes == 0 || bytes_left(address) >= bytes; }

HostBlock* host_block_of(const void* address) {
  auto& blocks = host_blocks();
  auto block = blocks.upper_bound(reinterpret_cast<uintptr_t>(address));
  if (block == blocks.begin()) return nullptr;
  --block;
  return reinterpret_cast<uintptr_t>(address) < block->first + block->second.bytes ? &block->second : nullptr;
}

}  // namespace cuda_sim

using namespace cuda_sim;

extern "C" {

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  CUDA_SIM_ENTER();
  if (const cudaError_t error = unsafe_call("cudaMalloc")) return error;
  const uint64_t n = ++counts().mallocs;
  if (bytes == 0) return *pointer = nullptr, cudaSuccess;
  const std::lock_guard lock(api_mutex());
  *pointer = allocation_fails(n) ? nullptr : spaces()[static_cast<size_t>(current_device())]->allocate(bytes);
  return *pointer ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}

cudaError_t cudaFree(void* pointer) {
  CUDA_SIM_ENTER();
  if (!pointer) return cudaSuccess;
  if (const cudaError_t error = unsafe_call("cudaFree")) return error;
  const int device = device_of(pointer);
  if (device < 0) return fail(cudaErrorInvalidValue);
  drain_device(device);  // as in CUDA
  ++counts().frees;
  const std::lock_guard lock(api_mutex());
  const size_t bytes = spaces()[static_cast<size_t>(device)]->free(pointer);
  if (bytes == 0) return fail(cudaErrorInvalidValue);
  forget_accesses(pointer, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  CUDA_SIM_ENTER();
  const std::lock_guard lock(api_mutex());
  *total = device_bytes();
  *free = *total - spaces()[static_cast<size_t>(current_device())]->used;
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  CUDA_SIM_ENTER();
  if (const cudaError_t error = unsafe_call("cudaHostAlloc")) return error;
  ++counts().host_allocations;
  *pointer = aligned_alloc(4096, rounded(bytes ? bytes : 1, 4096));
  if (!*pointer) return fail(cudaErrorMemoryAllocation);
  memset(*pointer, computes() ? 0xff : 0, bytes);
  const std::lock_guard lock(api_mutex());
  host_blocks()[reinterpret_cast<uintptr_t>(*pointer)] = {bytes, 0};
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned) {
  CUDA_SIM_ENTER();
  const std::lock_guard lock(api_mutex());
  host_blocks()[reinterpret_cast<uintptr_t>(pointer)] = {bytes, 0};
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* pointer) {
  const std::lock_guard lock(api_mutex());
  const auto block = host_blocks().find(reinterpret_cast<uintptr_t>(pointer));
  if (block == host_blocks().end()) return fail(cudaErrorHostMemoryNotRegistered);
  if (block->second.pending_copies > 0) {
    finding("memory", "page-locked memory is freed while " + std::to_string(block->second.pending_copies) +
                          " copies from or to it are pending");
  }
  forget_accesses(pointer, block->second.bytes);
  host_blocks().erase(block);
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* pointer) {
  if (!pointer) return cudaSuccess;
  if (const cudaError_t error = unsafe_call("cudaFreeHost")) return error;
  const cudaError_t error = cudaHostUnregister(pointer);
  if (error == cudaSuccess) free(pointer);
  return error;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  CUDA_SIM_ENTER();
  memset(attributes, 0, sizeof *attributes);
  attributes->type = cudaMemoryTypeUnregistered;
  attributes->device = -2;
  if (const int device = device_of(pointer); device >= 0) {
    attributes->type = cudaMemoryTypeDevice;
    attributes->device = device;
    attributes->devicePointer = const_cast<void*>(pointer);
    return cudaSuccess;
  }
  const std::lock_guard lock(api_mutex());
  if (host_block_of(pointer)) {
    attributes->type = cudaMemoryTypeHost;
    attributes->device = current_device();
    attributes->devicePointer = attributes->hostPointer = const_cast<void*>(pointer);
  }
  return cudaSuccess;
}

// Stream-ordered allocation, virtual memory and memory of other processes: LibTorch uses them only on request.
cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t) { return cudaMalloc(pointer, bytes); }
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t) { return cudaFree(pointer); }
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t*, int) { return cudaErrorNotSupported; }
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaErrorNotSupported; }
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaErrorNotSupported; }
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t, const cudaMemAccessDesc*, size_t) { return cudaErrorNotSupported; }
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return cudaErrorNotSupported; }
cudaError_t cudaIpcCloseMemHandle(void*) { return cudaErrorNotSupported; }
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t*, void*) { return cudaErrorNotSupported; }
cudaError_t cudaIpcOpenMemHandle(void**, cudaIpcMemHandle_t, unsigned) { return cudaErrorNotSupported; }
cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t*, cudaEvent_t) { return cudaErrorNotSupported; }
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t*, cudaIpcEventHandle_t) { return cudaErrorNotSupported; }

/// For NVML: a device's used and total bytes.
int cuda_sim_memory(int device, size_t* used, size_t* total) {
  const std::lock_guard lock(api_mutex());
  *used = spaces()[static_cast<size_t>(device)]->used;
  *total = device_bytes();
  return 0;
}

}  // extern "C"
