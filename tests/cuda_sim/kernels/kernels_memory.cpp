#include "kernels_memory.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels.h"

namespace cuda_sim {
namespace {

constexpr size_t kSharedBytes = size_t{1} << 20, kGap = 256;

// initial-exec: each access reads it, without a call.
__attribute__((tls_model("initial-exec"))) thread_local LaunchMemory* active_memory = nullptr;

/// The first byte of the allocation that contains `address`: bytes_left() only gives its end.
const char* begin_of(const char* address) {
  const char* const end = address + bytes_left(address);
  const auto is_inside = [&](const char* p) { return bytes_left(p) == static_cast<size_t>(end - p); };
  size_t step = 1;
  while (is_inside(address - step)) {
    address -= step;
    step *= 2;
  }
  for (; step > 0; step /= 2) {
    if (is_inside(address - step)) address -= step;
  }
  return address;
}

/// Describes an address outside all allocations.
std::string neighbour_of(const char* address) {
  constexpr size_t kMost = size_t{1} << 16;
  for (size_t away = 1; away <= kMost; ++away) {
    if (const size_t left = bytes_left(address - away)) {
      const char* const end = address - away + left;
      const auto size = static_cast<size_t>(end - begin_of(address - away));
      return std::to_string(address - end) + " bytes after an allocation of " + std::to_string(size);
    }
    if (const size_t left = bytes_left(address + away)) {
      return std::to_string(away) + " bytes before an allocation of " + std::to_string(left);
    }
  }
  return "in no allocation";
}

std::string text_of(uintptr_t address, size_t bytes, bool writes) {
  char text[80];
  snprintf(text, sizeof text, "%s %zu bytes at %#zx", writes ? "writes" : "reads", bytes, address);
  return text;
}

}  // namespace

void SharedMemory::begin_launch(size_t dynamic_bytes) {
  if (!memory_) memory_ = std::make_unique_for_overwrite<std::byte[]>(kSharedBytes);
  arrays_.clear();
  end_ = memory_.get();
  if (!add(nullptr, dynamic_bytes)) abort();  // more than any device has
}

void SharedMemory::begin_block() {
  for (const Array& array : arrays_) memset(array.begin, 0xff, array.bytes);
}

std::byte* SharedMemory::add(const void* key, size_t bytes) {
  constexpr uintptr_t kAlignment = 128;
  std::byte* begin = end_ + kGap;
  begin += -reinterpret_cast<uintptr_t>(begin) % kAlignment;
  if (begin + bytes + kGap > memory_.get() + kSharedBytes) return nullptr;
  end_ = begin + bytes;
  arrays_.push_back({key, begin, bytes});
  memset(begin, 0xff, bytes);
  return begin;
}

void* SharedMemory::find(const void* key, size_t bytes) {
  for (const Array& array : arrays_) {
    if (array.key == key) return array.begin;
  }
  return add(key, bytes);
}

bool SharedMemory::holds(uintptr_t address) const {
  return address - reinterpret_cast<uintptr_t>(memory_.get()) < kSharedBytes;
}

const SharedMemory::Array* SharedMemory::array_at(uintptr_t address) const {
  for (const Array& array : arrays_) {
    if (address - reinterpret_cast<uintptr_t>(array.begin) < array.bytes) return &array;
  }
  return nullptr;
}

LaunchMemory::LaunchMemory(int device, size_t shared_bytes)
    : device_(device), runner_(BlockRunner::instance()), shared_([]() -> SharedMemory& {
        thread_local SharedMemory memory;
        return memory;
      }()) {
  shared_.begin_launch(shared_bytes);
  active_memory = this;
}

LaunchMemory::~LaunchMemory() { active_memory = nullptr; }

LaunchMemory* LaunchMemory::active() { return active_memory; }

void LaunchMemory::fail(const std::string& text) const { runner_.fail(cudaErrorIllegalAddress, "kernel", text); }

void LaunchMemory::Bits::set(size_t begin, size_t end) {
  first = std::min(first, begin / 64);
  last = std::max(last, (end - 1) / 64);
  for (; begin < end; ++begin) words[begin / 64] |= uint64_t{1} << begin % 64;
}

void LaunchMemory::check(uintptr_t address, size_t bytes, bool writes) {
  const uintptr_t page = address / kPage;
  Cached& known = cached(page);
  if (known.page != page) {
    const Fiber* fiber = runner_.fiber();
    if (!fiber || (address >= fiber->stack_begin() && address < fiber->stack_end())) return;
    known = {page, look_up(address, bytes, writes)};
  }
  if (!known.range) return;
  const bool is_inside = address >= known.range->begin && address + bytes <= known.range->end;
  if (!is_inside) known.range = look_up(address, bytes, writes);
  if (!known.range) return;  // host memory in the same page
  Range& range = *known.range;
  if (!range.device) return;
  (writes ? range.writes : range.reads)
      .set((address - range.begin) / kUnit, (address + bytes - range.begin + kUnit - 1) / kUnit);
}

/// Returns the range that contains all bytes, or nullptr for host memory. Fails the block if there is none.
LaunchMemory::Range* LaunchMemory::look_up(uintptr_t address, size_t bytes, bool writes) {
  Range* found = nullptr;
  for (const auto& range : ranges_) {
    if (address >= range->begin && address < range->end) found = range.get();
  }
  const std::string what = found ? std::string() : text_of(address, bytes, writes);
  if (!found && shared_.holds(address)) found = add_shared(address, what);
  if (!found) {
    if (const void* device = device_address(reinterpret_cast<const void*>(address))) {
      found = add_device(static_cast<const char*>(device), address, what);
    }
  }
  if (!found) {
    check_host(address, what);
    return nullptr;
  }
  if (address + bytes > found->end) {
    const auto beyond = address + bytes - found->end;
    const uintptr_t shown =
        found->device ? reinterpret_cast<uintptr_t>(found->device) + (address - found->begin) : address;
    fail(text_of(shown, bytes, writes) + ", of which " + std::to_string(beyond) + " are after " +
         (found->device ? "an allocation of " : "an array of shared memory of ") +
         std::to_string(found->end - found->begin));
  }
  return found;
}

LaunchMemory::Range* LaunchMemory::add_shared(uintptr_t address, const std::string& what) {
  const SharedMemory::Array* array = shared_.array_at(address);
  if (!array) fail(what + " of shared memory, outside all arrays");
  const auto begin = reinterpret_cast<uintptr_t>(array->begin);
  ranges_.push_back(std::make_unique<Range>(Range{begin, begin + array->bytes, nullptr, {}, {}}));
  return ranges_.back().get();
}

LaunchMemory::Range* LaunchMemory::add_device(const char* device, uintptr_t address, const std::string& what) {
  const size_t left = bytes_left(device);
  if (left == 0) {
    char place[32];
    snprintf(place, sizeof place, "%p", static_cast<const void*>(device));
    fail(what.substr(0, what.rfind(' ') + 1) + place + ", " + neighbour_of(device));
  }
  if (device_of(device) != device_) fail(what + ", in memory of device " + std::to_string(device_of(device)));
  const char* const begin = begin_of(device);
  const size_t bytes = static_cast<size_t>(device - begin) + left;
  const uintptr_t first = address - static_cast<size_t>(device - begin);
  auto range = std::make_unique<Range>(Range{first, first + bytes, begin, {}, {}});
  const size_t words = bytes / kUnit / 64 + 1;
  for (Bits* bits : {&range->reads, &range->writes})
    bits->words.reset(static_cast<uint64_t*>(calloc(words, sizeof(uint64_t))));
  ranges_.push_back(std::move(range));
  return ranges_.back().get();
}

/// Host memory belongs to the simulation: arguments, constants, a thread's position.
void LaunchMemory::check_host(uintptr_t address, const std::string& what) const {
  constexpr uintptr_t kLowest = 1 << 16;
  if (address < kLowest) fail(what + ", a null pointer");
  if (device_of(reinterpret_cast<const void*>(address)) >= 0) {
    fail(what +
         ", an address of device memory that is no argument of the kernel: the simulation has not translated it");
  }
}

/// Appends runs of set bits.
void LaunchMemory::append(const Range& range, const Bits& bits, bool writes, std::vector<Access>& to) {
  if (bits.first > bits.last) return;
  const size_t size = range.end - range.begin, end = (bits.last + 1) * 64;
  const auto next = [&](size_t at, bool wanted) {
    while (at < end) {
      const uint64_t word = (wanted ? bits.words[at / 64] : ~bits.words[at / 64]) >> at % 64;
      if (word != 0) return std::min(end, at + static_cast<size_t>(std::countr_zero(word)));
      at = (at / 64 + 1) * 64;
    }
    return end;
  };
  for (size_t at = next(bits.first * 64, true); at < end;) {
    const size_t stop = next(at, false);
    to.push_back({range.device + at * kUnit, std::min(stop * kUnit, size) - at * kUnit, writes});
    at = next(stop, true);
  }
}

std::vector<Access> LaunchMemory::accesses() const {
  std::vector<Access> all;
  for (const auto& range : ranges_) {
    append(*range, range->reads, false, all);
    append(*range, range->writes, true, all);
  }
  return all;
}

namespace on_host {

void* dynamic_shared() { return active_memory->shared().dynamic(); }

void* static_shared(const void* key, size_t bytes) {
  void* found = active_memory->shared().find(key, bytes);
  if (!found) BlockRunner::instance().fail(cudaErrorInvalidConfiguration, "kernel", "needs too much shared memory");
  return found;
}

}  // namespace on_host
}  // namespace cuda_sim

// Called by the instrumented kernels. Outside a launch (registration) nothing is checked.
namespace {

inline void on_access(uintptr_t address, size_t bytes, bool writes) {
  cuda_sim::LaunchMemory* const memory = cuda_sim::active_memory;
  if (!memory || bytes == 0 || memory->check_known(address, bytes, writes)) return;
  memory->check(address, bytes, writes);
}

}  // namespace

#define CUDA_SIM_HIDDEN extern "C" __attribute__((visibility("hidden")))
#ifdef __clang__
#define CUDA_SIM_HOOK(name) __cuda_sim_##name
#else
#define CUDA_SIM_HOOK(name) __asan_##name
CUDA_SIM_HIDDEN void __asan_before_dynamic_init(const char*) {}
CUDA_SIM_HIDDEN void __asan_after_dynamic_init() {}
#endif
#define CUDA_SIM_ACCESS(bytes)                                                                                       \
  CUDA_SIM_HIDDEN void CUDA_SIM_HOOK(load##bytes##_noabort)(uintptr_t address) { on_access(address, bytes, false); } \
  CUDA_SIM_HIDDEN void CUDA_SIM_HOOK(store##bytes##_noabort)(uintptr_t address) { on_access(address, bytes, true); }
CUDA_SIM_ACCESS(1)
CUDA_SIM_ACCESS(2)
CUDA_SIM_ACCESS(4)
CUDA_SIM_ACCESS(8)
CUDA_SIM_ACCESS(16)
CUDA_SIM_HIDDEN void CUDA_SIM_HOOK(loadN_noabort)(uintptr_t address, size_t bytes) { on_access(address, bytes, false); }
CUDA_SIM_HIDDEN void CUDA_SIM_HOOK(storeN_noabort)(uintptr_t address, size_t bytes) { on_access(address, bytes, true); }

CUDA_SIM_HIDDEN void* CUDA_SIM_HOOK(memcpy)(void* to, const void* from, size_t bytes) {
  on_access(reinterpret_cast<uintptr_t>(from), bytes, false);
  on_access(reinterpret_cast<uintptr_t>(to), bytes, true);
  return memcpy(to, from, bytes);
}
CUDA_SIM_HIDDEN void* CUDA_SIM_HOOK(memmove)(void* to, const void* from, size_t bytes) {
  on_access(reinterpret_cast<uintptr_t>(from), bytes, false);
  on_access(reinterpret_cast<uintptr_t>(to), bytes, true);
  return memmove(to, from, bytes);
}
CUDA_SIM_HIDDEN void* CUDA_SIM_HOOK(memset)(void* to, int value, size_t bytes) {
  on_access(reinterpret_cast<uintptr_t>(to), bytes, true);
  return memset(to, value, bytes);
}
