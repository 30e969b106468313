#pragma once
// The memory of one rank that all ranks of a machine can read and write.

#include <c10/core/Allocator.h>
#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "core/files/unique_descriptor.h"

namespace trainkit::detail {

/// Anonymous memory (memfd) of one rank, mapped into this process: a Head, a place for copies, then memory for tensors.
/// Most of its kBytes are addresses only: pages are taken when they are first written.
class RankMemory : public std::enable_shared_from_this<RankMemory> {
 public:
  static constexpr size_t kSlotBytes = 4096;
  static constexpr size_t kCopyBytes = 4 << 20;

  /// What a rank contributes to a collective. Written by its rank before it counts `arrived`.
  struct Slot {
    uint64_t total_bytes;                                  // of the tensor
    uint64_t first;                                        // the values, in bytes from the beginning of the memory
    uint64_t part_stride;                                  // from one part to the next, in bytes
    alignas(64) std::array<std::byte, kSlotBytes> values;  // of a small tensor
  };
  /// How many ranks have reached an exchange. That of the first rank counts, for all.
  struct Meeting {
    alignas(64) std::atomic<uint32_t> visits;    // of all ranks
    alignas(64) std::atomic<uint32_t> complete;  // last exchange that all ranks have reached; a waiter sleeps on it
  };
  /// Written only by its rank, but for the meetings. The counters wrap around.
  struct Head {
    uint64_t token;
    Meeting arrivals, finishes;
    alignas(64) std::atomic<uint32_t> arrived;   // exchanges that this rank has arrived at
    alignas(64) std::atomic<uint32_t> finished;  // exchanges in which it no longer reads or writes others' memory
    alignas(64) std::atomic<uint32_t> ended;
    std::array<Slot, 2> slots;  // of exchange n: slots[n % 2]
  };

  /// Memory for this process's rank; a negative number if there is none.
  static UniqueDescriptor create();
  /// Maps the memory of `process`, which has the token `token` if one is given. Returns null if the memory is another
  /// one, cannot be mapped, or if the process cannot be watched.
  static std::shared_ptr<RankMemory> map(int memory, pid_t process, std::optional<uint64_t> token = std::nullopt);
  ~RankMemory();
  RankMemory(const RankMemory&) = delete;
  RankMemory& operator=(const RankMemory&) = delete;

  Head& head() const { return *reinterpret_cast<Head*>(data_); }
  std::byte* at(uint64_t offset) const { return data_ + offset; }
  std::byte* place_for_copies() const { return data_ + kHeadBytes; }
  /// Position of an address in this memory, if it is in it.
  std::optional<uint64_t> offset_of(const std::byte* address) const;
  /// Whether `bytes` bytes from `offset` are in this memory.
  static bool contains(uint64_t offset, uint64_t bytes) { return offset <= kBytes && bytes <= kBytes - offset; }
  /// Whether the rank has left, or its process has ended.
  bool gone() const;

  /// Memory for a tensor of this process's rank, on a page of its own; null if none is left. Any thread. It lives as
  /// long as the returned pointer, which keeps the mapping.
  c10::DataPtr allocate(size_t bytes);

 private:
  static constexpr size_t kHeadBytes = 16 << 10;
  static constexpr size_t kBytes = size_t{16} << 30;
  static_assert(sizeof(Head) <= kHeadBytes);
  static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

  RankMemory(std::byte* data, UniqueDescriptor process) : data_(data), process_(std::move(process)) {}
  void release(uint64_t offset, size_t bytes);

  std::byte* data_;
  UniqueDescriptor process_;  // pidfd, readable once the process has ended
  std::mutex mutex_;
  std::map<uint64_t, uint64_t> taken_;  // end by begin of allocated memory; guarded by mutex_
};

}  // namespace trainkit::detail
