#pragma once
// CUDA's kernel language for the host. The generated copy of a .cu file includes this first. Contains only code small
// enough to be compiled together with the kernels, whose memory accesses are checked.
#include <cuda_runtime.h>

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <typeinfo>
#include <utility>

#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __shared__  // the generator replaces it
#define threadIdx (::cuda_sim::on_host::place.thread)
#define blockIdx (::cuda_sim::on_host::place.block)
#define blockDim (::cuda_sim::on_host::place.block_dim)
#define gridDim (::cuda_sim::on_host::place.grid_dim)
#define warpSize 32

namespace cuda_sim::on_host {

struct Place {
  uint3 thread, block;
  dim3 block_dim, grid_dim;
};
/// Of the running thread of the grid.
extern constinit thread_local Place place;

enum class WarpOperation : uint8_t { kShuffle, kShuffleXor, kShuffleUp, kShuffleDown, kBallot, kSync };

void sync_block();
void trap();
unsigned lane();
/// Waits for all lanes of `mask`; returns the bits of lane `source` or of a ballot.
uint64_t exchange(WarpOperation operation, unsigned mask, uint64_t bits, unsigned source);
void* dynamic_shared();
/// The block's array for a declaration, identified by `key`.
void* static_shared(const void* key, size_t bytes);

template <class T, int line>
T& shared() {
  static_assert(std::is_trivially_default_constructible_v<T>);
  static char key;
  return *static_cast<T*>(static_shared(&key, sizeof(T)));
}

template <class T>
T shuffle(WarpOperation operation, unsigned mask, T value, unsigned source) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(T));
  bits = exchange(operation, mask, bits, source);
  memcpy(&value, &bits, sizeof(T));
  return value;
}

/// Information about one instantiation of a kernel for register_kernel.
struct Registration {
  const char* type_name;  // mangled, of Named<Type, kernel>
  void (*body)(const std::byte* const* arguments);
  const size_t* bytes;
  const bool* are_pointers;
  size_t count;
};
bool register_kernel(const Registration& registration);

template <class Type, Type kernel>
struct Named {};

template <auto kernel, class Type = decltype(kernel)>
struct Entry;

template <auto kernel, class... Arguments>
struct Entry<kernel, void (*)(Arguments...)> {
  static_assert((std::is_trivially_copyable_v<Arguments> && ...));
  static constexpr size_t kBytes[] = {sizeof(Arguments)..., 0};
  static constexpr bool kArePointers[] = {std::is_pointer_v<Arguments>..., false};

  template <size_t... i>
  static void call(const std::byte* const* arguments, std::index_sequence<i...>) {
    kernel(*reinterpret_cast<const Arguments*>(arguments[i])...);
  }
  static void body(const std::byte* const* arguments) { call(arguments, std::index_sequence_for<Arguments...>()); }
  static inline const bool registered = register_kernel(
      {typeid(Named<void (*)(Arguments...), kernel>).name(), &body, kBytes, kArePointers, sizeof...(Arguments)});
};

struct Configuration {
  explicit Configuration(dim3, dim3 = {}, size_t = 0, cudaStream_t = nullptr) {}
};

/// Replaces kernel<<<...>>>(arguments...). Never runs, because the library's own objects launch the kernels. Its
/// instantiation registers the kernel.
template <auto kernel, class... Arguments>
bool launch(const Configuration&, Arguments&&...) {
  return Entry<kernel>::registered;
}

}  // namespace cuda_sim::on_host

/// A product that is never part of a fused multiply-add.
inline float __fmul_rn(float a, float b) {
  float result = a * b;
  asm("" : "+x"(result));
  return result;
}

inline int __popc(unsigned bits) { return std::popcount(bits); }

inline void __syncthreads() { ::cuda_sim::on_host::sync_block(); }
inline void __trap() { ::cuda_sim::on_host::trap(); }

inline void __syncwarp(unsigned mask = ~0u) {
  using namespace ::cuda_sim::on_host;
  exchange(WarpOperation::kSync, mask, 0, 0);
}

inline unsigned __ballot_sync(unsigned mask, int predicate) {
  using namespace ::cuda_sim::on_host;
  return static_cast<unsigned>(exchange(WarpOperation::kBallot, mask, predicate != 0, 0));
}

// A lane outside the caller's group of `width` lanes gives the caller's own value.
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  using namespace ::cuda_sim::on_host;
  const unsigned last = static_cast<unsigned>(width) - 1;
  return shuffle(WarpOperation::kShuffle, mask, value, (lane() & ~last) | (static_cast<unsigned>(source) & last));
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int distance, int width = 32) {
  using namespace ::cuda_sim::on_host;
  const unsigned mine = lane(), source = mine ^ static_cast<unsigned>(distance);
  return shuffle(WarpOperation::kShuffleXor, mask, value,
                 source > (mine | (static_cast<unsigned>(width) - 1)) ? mine : source);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned distance, int width = 32) {
  using namespace ::cuda_sim::on_host;
  const unsigned mine = lane(), first = mine & ~(static_cast<unsigned>(width) - 1);
  return shuffle(WarpOperation::kShuffleUp, mask, value, mine < first + distance ? mine : mine - distance);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned distance, int width = 32) {
  using namespace ::cuda_sim::on_host;
  const unsigned mine = lane(), source = mine + distance;
  return shuffle(WarpOperation::kShuffleDown, mask, value,
                 source > (mine | (static_cast<unsigned>(width) - 1)) ? mine : source);
}

/// Also atomic between the streams' threads.
template <class T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  return std::atomic_ref<T>(*address).fetch_add(value, std::memory_order_relaxed);
}
