// Copies and fills. Copies of page-locked memory run late, in the stream's thread, and detect a source or target that
// the host changed; copies of pageable memory block the caller as in CUDA, and are counted. Copies between devices need
// no peer access: CUDA then moves the bytes through the host.
#include <cstring>
#include <utility>

#include "state.h"

namespace cuda_sim {
namespace {

enum class Place { kPageable, kPinned, kDevice };

Place place_of(const void* p) {
  if (device_of(p) >= 0) return Place::kDevice;
  const std::lock_guard lock(api_mutex());
  return host_block_of(p) ? Place::kPinned : Place::kPageable;
}

/// The host address of the bytes.
void* bytes_of(const void* p) {
  void* backed = backing(p);
  return backed ? backed : const_cast<void*>(p);
}

uint64_t hash_of(const void* begin, size_t bytes) {
  uint64_t hash = bytes, word = 0;
  const auto* at = static_cast<const unsigned char*>(begin);
  for (; bytes > 0; at += sizeof word) {
    const size_t part = bytes < sizeof word ? bytes : sizeof word;
    word = 0;
    memcpy(&word, at, part);
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
    bytes -= part;
  }
  return hash;
}

std::string text_of(const void* p) {
  switch (place_of(p)) {
    case Place::kDevice:
      return "memory of device " + std::to_string(device_of(p));
    case Place::kPinned:
      return "page-locked memory of the host";
    default:
      return "memory of the host";
  }
}

/// Returns whether the two addresses match `kind`; reports a finding if not.
bool fits(const char* call, const void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  const bool to_device = device_of(to) >= 0, from_device = device_of(from) >= 0;
  const bool wants_to = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool wants_from = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (kind != cudaMemcpyDefault && (to_device != wants_to || from_device != wants_from)) {
    finding("memory", std::string(call) + " of kind " + std::to_string(kind) + " is given " + text_of(from) +
                          " to copy to " + text_of(to));
    return false;
  }
  for (const void* p : {to, from}) {
    if (device_of(p) >= 0 && !is_device_range(p, bytes)) {
      finding("memory", std::string(call) + " of " + std::to_string(bytes) +
                            " bytes goes beyond the allocation, which has " + std::to_string(bytes_left(p)) +
                            " from there");
      return false;
    }
  }
  return true;
}

void count_copy(const void* to, const void* from, size_t bytes) {
  const int to_device = device_of(to), from_device = device_of(from);
  if (to_device >= 0 && from_device >= 0) {
    ++(to_device == from_device ? counts().on_device : counts().between_devices);
  } else if (to_device >= 0) {
    ++counts().to_device;
    counts().bytes_to_device += bytes;
  } else {
    ++counts().to_host;
    counts().bytes_to_host += bytes;
  }
}

std::vector<Access> accesses_of(const void* to, const void* from, size_t bytes) {
  std::vector<Access> accesses;
  if (place_of(from) != Place::kPageable) accesses.push_back({from, bytes, false});
  if (place_of(to) != Place::kPageable) accesses.push_back({to, bytes, true});
  return accesses;
}

/// Returns the number of pending copies before the change.
int count_pending(const void* p, int change) {
  const std::lock_guard lock(api_mutex());
  HostBlock* const block = host_block_of(p);
  return block ? std::exchange(block->pending_copies, block->pending_copies + change) : 0;
}

std::string name_of(const void* to, const void* from, size_t bytes) {
  const char* kind = device_of(to) < 0 ? "to the host" : device_of(from) < 0 ? "to the device" : "on the device";
  return "copy of " + std::to_string(bytes) + " bytes " + kind;
}

/// A copy between device memory and page-locked memory, or within device memory.
cudaError_t copy_late(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  const bool from_host = device_of(from) < 0, to_host = device_of(to) < 0;
  if (is_capturing(stream)) {  // a replay uses the values at its time
    return enqueue(stream, name_of(to, from, bytes), accesses_of(to, from, bytes),
                   [=] { memmove(bytes_of(to), bytes_of(from), bytes); });
  }
  const uint64_t before = from_host ? hash_of(from, bytes) : 0;
  count_pending(from, 1);
  // Another pending copy may change the target first, legally.
  const bool owns_target = count_pending(to, 1) == 0 && to_host;
  const uint64_t target_before = owns_target ? hash_of(to, bytes) : 0;
  return enqueue(stream, name_of(to, from, bytes), accesses_of(to, from, bytes), [=] {
    if (from_host && hash_of(from, bytes) != before) {
      finding("race", "the host changed " + std::to_string(bytes) +
                          " bytes of page-locked memory while their copy to the device was pending");
    }
    if (owns_target && hash_of(to, bytes) != target_before) {
      finding("race", "the host changed " + std::to_string(bytes) +
                          " bytes of page-locked memory while a copy from the device to them was pending");
    }
    memmove(bytes_of(to), bytes_of(from), bytes);
    count_pending(from, -1);
    count_pending(to, -1);
  });
}

/// A copy from or to pageable memory: the caller waits, or the bytes are copied immediately. A separate function, so
/// that a debugger can set a breakpoint.
[[gnu::noinline]] cudaError_t copy_pageable(const char* call, void* to, const void* from, size_t bytes,
                                            cudaStream_t stream) {
  {
    const std::lock_guard lock(api_mutex());
    Stream* capturing = stream_of(stream);
    if (capturing && capturing->capture) return illegal_in(*capturing, call);
  }
  ++counts().pageable;
  if (device_of(to) < 0) {
    if (const cudaError_t error = enqueue(stream, name_of(to, from, bytes), accesses_of(to, from, bytes),
                                          [=] { memcpy(to, bytes_of(from), bytes); })) {
      return error;
    }
    return cudaStreamSynchronize(stream);
  }
  auto taken =
      std::make_shared<std::vector<char>>(static_cast<const char*>(from), static_cast<const char*>(from) + bytes);
  return enqueue(stream, name_of(to, from, bytes), accesses_of(to, from, bytes),
                 [=] { memcpy(bytes_of(to), taken->data(), bytes); });
}

cudaError_t copy(const char* call, void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  if (!fits(call, to, from, bytes, kind)) return fail(cudaErrorInvalidValue);
  if (device_of(to) < 0 && device_of(from) < 0) return memmove(to, from, bytes), cudaSuccess;
  count_copy(to, from, bytes);
  const bool crosses = device_of(to) < 0 || device_of(from) < 0;
  if (crosses && is_dropped_copy(bytes)) return note("a copy is dropped"), cudaSuccess;
  const bool is_pageable = place_of(to) == Place::kPageable || place_of(from) == Place::kPageable;
  return is_pageable ? copy_pageable(call, to, from, bytes, stream) : copy_late(to, from, bytes, stream);
}

}  // namespace
}  // namespace cuda_sim

using namespace cuda_sim;

extern "C" {

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  CUDA_SIM_ENTER();
  return copy("cudaMemcpyAsync", to, from, bytes, kind, stream);
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  CUDA_SIM_ENTER();
  if (const cudaError_t error = unsafe_call("cudaMemcpy")) return error;
  if (const cudaError_t error = copy("cudaMemcpy", to, from, bytes, kind, nullptr)) return error;
  return cudaStreamSynchronize(nullptr);
}

cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t stream) {
  CUDA_SIM_ENTER();
  return copy("cudaMemcpyPeerAsync", to, from, bytes, cudaMemcpyDeviceToDevice, stream);
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  CUDA_SIM_ENTER();
  if (bytes == 0) return cudaSuccess;
  if (device_of(to) < 0 || !is_device_range(to, bytes)) {
    finding("memory", "cudaMemsetAsync of " + std::to_string(bytes) + " bytes is given " + text_of(to) + ", " +
                          std::to_string(bytes_left(to)) + " bytes before its end");
    return fail(cudaErrorInvalidValue);
  }
  ++counts().fills;
  return enqueue(stream, "memset", {{to, bytes, true}}, [=] { memset(backing(to), value, bytes); });
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) { return cudaMemsetAsync(to, value, bytes, nullptr); }

}  // extern "C"
