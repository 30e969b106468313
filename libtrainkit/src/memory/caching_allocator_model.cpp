#include "memory/caching_allocator_model.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <unordered_map>
#include <vector>

#include "core/base/round_up.h"

namespace trainkit {
namespace {

// Constants with the names of c10/cuda/CUDACachingAllocator.h and c10/core/AllocatorConfig.h.
constexpr int64_t kMinBlockSize = 512;
constexpr int64_t kSmallSize = int64_t{1} << 20;
constexpr int64_t kSmallBuffer = int64_t{2} << 20;
constexpr int64_t kMinLargeAlloc = int64_t{10} << 20;
constexpr int64_t kLargeBuffer = int64_t{20} << 20;
constexpr int64_t kRoundLarge = int64_t{2} << 20;

int64_t segment_size(int64_t block) {
  if (block <= kSmallSize) return kSmallBuffer;
  return block < kMinLargeAlloc ? kLargeBuffer : detail::round_up(block, kRoundLarge);
}

/// A part of a segment. Addresses are virtual: segments are placed one after the other, with a gap in between.
struct Part {
  int64_t segment = 0;
  int64_t bytes = 0;
  int32_t stream = 0;
  bool small = false;
  bool in_use = false;
  int64_t handle = -1;
};

}  // namespace

class CachingAllocatorModel::Impl {
 public:
  explicit Impl(int64_t capacity) : capacity_(capacity) {}

  int64_t allocate(int64_t asked, int32_t stream) {
    const int64_t bytes = std::max(kMinBlockSize, detail::round_up(asked, kMinBlockSize));
    const bool small = bytes <= kSmallSize;
    auto part = find_free(bytes, stream, small);
    if (part == parts_.end()) {
      if (!reserve(segment_size(bytes), stream, small)) return -1;
      part = find_free(bytes, stream, small);
    }
    take(part, bytes);
    const int64_t handle = next_handle_++;
    part->second.handle = handle;
    used_.emplace(handle, part->first);
    now_.allocated_bytes += part->second.bytes;
    peak_.allocated_bytes = std::max(peak_.allocated_bytes, now_.allocated_bytes);
    return handle;
  }

  void free(int64_t handle) {
    const auto used = used_.find(handle);
    TORCH_CHECK(used != used_.end(), "unknown block handle ", handle);
    auto part = parts_.find(used->second);
    used_.erase(used);
    now_.allocated_bytes -= part->second.bytes;
    part->second.in_use = false;
    if (const auto next = std::next(part); can_join(part, next)) {
      drop_free(next);
      part->second.bytes += next->second.bytes;
      parts_.erase(next);
    }
    if (part != parts_.begin()) {
      if (const auto before = std::prev(part); can_join(before, part)) {
        drop_free(before);
        before->second.bytes += part->second.bytes;
        parts_.erase(part);
        part = before;
      }
    }
    add_free(part);
  }

  void empty_cache() {
    for (auto segment = segments_.begin(); segment != segments_.end();) {
      const auto part = parts_.find(segment->first);
      if (part->second.in_use || part->second.bytes != segment->second) {
        ++segment;
        continue;
      }
      drop_free(part);
      parts_.erase(part);
      now_.reserved_bytes -= segment->second;
      segment = segments_.erase(segment);
    }
  }

  DeviceMemory now_, peak_;

 private:
  using Parts = std::map<int64_t, Part>;  // by address

  /// Returns the smallest free part that fits; among equal sizes the one with the lowest address.
  Parts::iterator find_free(int64_t bytes, int32_t stream, bool small) {
    const auto& pool = free_[{stream, small}];
    const auto found = pool.lower_bound({bytes, 0});
    return found == pool.end() ? parts_.end() : parts_.find(found->second);
  }

  /// Adds a segment from the driver. If the driver has no memory left, empties the cache and retries once.
  bool reserve(int64_t bytes, int32_t stream, bool small) {
    if (capacity_ > 0 && now_.reserved_bytes + bytes > capacity_) empty_cache();
    if (capacity_ > 0 && now_.reserved_bytes + bytes > capacity_) return false;
    constexpr int64_t kGap = kMinBlockSize;
    const int64_t segment = next_address_;
    next_address_ += bytes + kGap;
    const Part whole{.segment = segment, .bytes = bytes, .stream = stream, .small = small};
    add_free(parts_.emplace(segment, whole).first);
    segments_.emplace(segment, bytes);
    now_.reserved_bytes += bytes;
    peak_.reserved_bytes = std::max(peak_.reserved_bytes, now_.reserved_bytes);
    return true;
  }

  void take(Parts::iterator part, int64_t bytes) {
    drop_free(part);
    Part& taken = part->second;
    taken.in_use = true;
    const int64_t rest = taken.bytes - bytes;
    if (taken.small ? rest < kMinBlockSize : rest <= kSmallSize) return;  // too small to split
    const Part other{.segment = taken.segment, .bytes = rest, .stream = taken.stream, .small = taken.small};
    add_free(parts_.emplace(part->first + bytes, other).first);
    taken.bytes = bytes;
  }

  bool can_join(Parts::iterator left, Parts::iterator right) const {
    return left != parts_.end() && right != parts_.end() && left->second.segment == right->second.segment &&
           !left->second.in_use && !right->second.in_use;
  }

  /// Size and address of the free parts of one stream and size class.
  using FreeParts = std::set<std::pair<int64_t, int64_t>>;
  FreeParts& free_parts_like(Parts::iterator part) { return free_[{part->second.stream, part->second.small}]; }
  void add_free(Parts::iterator part) { free_parts_like(part).emplace(part->second.bytes, part->first); }
  void drop_free(Parts::iterator part) { free_parts_like(part).erase({part->second.bytes, part->first}); }

  const int64_t capacity_;
  int64_t next_address_ = 0, next_handle_ = 0;
  Parts parts_;
  std::map<int64_t, int64_t> segments_;                 // address to bytes
  std::map<std::pair<int32_t, bool>, FreeParts> free_;  // key: stream, and whether parts are small
  std::unordered_map<int64_t, int64_t> used_;           // handle to address
};

CachingAllocatorModel::CachingAllocatorModel(int64_t capacity_bytes) : impl_(std::make_unique<Impl>(capacity_bytes)) {}
CachingAllocatorModel::~CachingAllocatorModel() = default;
int64_t CachingAllocatorModel::allocate(int64_t bytes, int32_t stream) { return impl_->allocate(bytes, stream); }
void CachingAllocatorModel::free(int64_t handle) { impl_->free(handle); }
void CachingAllocatorModel::empty_cache() { impl_->empty_cache(); }
DeviceMemory CachingAllocatorModel::now() const { return impl_->now_; }
DeviceMemory CachingAllocatorModel::peak() const { return impl_->peak_; }

namespace {

/// Runs `trace` on `device`. Returns false if the device runs out of memory.
bool run(const MemoryTrace& trace, CachingAllocatorModel& device) {
  std::vector<int64_t> handles(trace.blocks.size(), -1);
  for (const int32_t event : trace.events) {
    if (event == MemoryTrace::kEmptyCache) {
      device.empty_cache();
      continue;
    }
    const auto block = static_cast<size_t>(std::abs(event) - 1);
    if (trace.blocks[block].bytes == 0) continue;  // CUDA's allocator allocates nothing for an empty tensor
    if (event < 0) {
      device.free(handles[block]);
    } else if ((handles[block] = device.allocate(trace.blocks[block].bytes, trace.blocks[block].stream)) < 0) {
      return false;
    }
  }
  return true;
}

}  // namespace

DeviceMemory predict_device_memory(const MemoryTrace& trace) {
  CachingAllocatorModel device;
  run(trace, device);
  return device.peak();
}

bool fits(const MemoryTrace& trace, int64_t capacity_bytes) {
  CachingAllocatorModel device(capacity_bytes);
  return run(trace, device);
}

}  // namespace trainkit
