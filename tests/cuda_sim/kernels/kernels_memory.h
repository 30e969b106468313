#pragma once
// Checks and records the memory that a launch reads and writes. Kernels call it at each load and store (clang's
// -fsanitize=kernel-address; see kernels.cmake).
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "kernels_block.h"
#include "sim.h"

namespace cuda_sim {

/// The shared memory of one block at a time, with gaps between its arrays.
class SharedMemory {
 public:
  struct Array {
    const void* key;
    std::byte* begin;
    size_t bytes;
  };

  void begin_launch(size_t dynamic_bytes);
  /// Fills it with 0xff, which is NaN.
  void begin_block();
  void* dynamic() const { return arrays_.front().begin; }
  /// The array of a declaration; nullptr if there is not enough memory.
  void* find(const void* key, size_t bytes);
  bool holds(uintptr_t address) const;
  const Array* array_at(uintptr_t address) const;

 private:
  std::byte* add(const void* key, size_t bytes);
  std::unique_ptr<std::byte[]> memory_;
  std::byte* end_ = nullptr;
  std::vector<Array> arrays_;
};

/// The memory that one launch may access, and its accesses.
class LaunchMemory {
 public:
  LaunchMemory(int device, size_t shared_bytes);
  ~LaunchMemory();
  LaunchMemory(const LaunchMemory&) = delete;
  LaunchMemory& operator=(const LaunchMemory&) = delete;

  /// Of the launch that runs in this thread of the operating system; nullptr if none.
  static LaunchMemory* active();

  /// A load or store of the running thread. Fails the block if it is invalid.
  void check(uintptr_t address, size_t bytes, bool writes);
  /// The same for most accesses, without a call: those in a page that the thread has accessed before. Returns false if
  /// check() must decide.
  bool check_known(uintptr_t address, size_t bytes, bool writes);
  SharedMemory& shared() { return shared_; }
  std::vector<Access> accesses() const;

 private:
  static constexpr size_t kPage = 4096;
  static constexpr size_t kUnit = 4;  // bytes that are recorded together

  struct FreeBits {
    void operator()(uint64_t* bits) const { free(bits); }
  };
  struct Bits {
    std::unique_ptr<uint64_t[], FreeBits> words;
    size_t first = SIZE_MAX, last = 0;  // words with bits
    void set(size_t begin, size_t end);
  };
  /// An allocation of device memory, or an array of shared memory, by host addresses.
  struct Range {
    uintptr_t begin, end;
    const char* device;  // its address; nullptr if it is shared memory
    Bits reads, writes;
  };
  struct Cached {
    uintptr_t page = UINTPTR_MAX;
    Range* range = nullptr;  // nullptr: host memory
  };

  /// Arrays often begin a multiple of many pages apart, and a kernel reads several of them in turns.
  Cached& cached(uintptr_t page) { return cache_[(page ^ page >> 10 ^ page >> 20) % cache_.size()]; }
  Range* look_up(uintptr_t address, size_t bytes, bool writes);
  Range* add_shared(uintptr_t address, const std::string& what);
  Range* add_device(const char* device, uintptr_t address, const std::string& what);
  void check_host(uintptr_t address, const std::string& what) const;
  static void append(const Range& range, const Bits& bits, bool writes, std::vector<Access>& to);
  [[noreturn]] void fail(const std::string& text) const;

  int device_;
  BlockRunner& runner_;
  SharedMemory& shared_;
  std::vector<std::unique_ptr<Range>> ranges_;
  std::array<Cached, 1024> cache_{};
};

inline bool LaunchMemory::check_known(uintptr_t address, size_t bytes, bool writes) {
  const Cached& known = cached(address / kPage);
  if (known.page != address / kPage) return false;
  Range* const range = known.range;
  if (!range) return true;
  const size_t offset = address - range->begin;
  if (address < range->begin || address + bytes > range->end) return false;
  if (!range->device) return true;
  const size_t first = offset / kUnit, last = (offset + bytes - 1) / kUnit, word = first / 64;
  if (last / 64 != word) return false;
  Bits& bits = writes ? range->writes : range->reads;
  bits.first = std::min(bits.first, word);
  bits.last = std::max(bits.last, word);
  bits.words[word] |= (~uint64_t{0} >> (63 - (last - first))) << first % 64;
  return true;
}

}  // namespace cuda_sim
