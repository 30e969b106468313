#include "trainkit/memory/caching_allocator_model.h"

#include "test_util.h"

namespace trainkit {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// What torch.cuda.memory_allocated() and memory_reserved() say after the same calls, from the rules in
// c10/cuda/CUDACachingAllocator.cpp.

TEST_CASE("Blocks are rounded to 512 bytes and small ones share a segment of 2 MiB") {
  CachingAllocatorModel device;
  const int64_t first = device.allocate(1);
  CHECK(device.now().allocated_bytes == 512);
  CHECK(device.now().reserved_bytes == 2 * kMiB);
  device.allocate(513);
  CHECK(device.now().allocated_bytes == 512 + 1024);
  CHECK(device.now().reserved_bytes == 2 * kMiB);
  device.free(first);
  CHECK(device.now().allocated_bytes == 1024);
  CHECK(device.now().reserved_bytes == 2 * kMiB);  // kept for later
  CHECK(device.peak().allocated_bytes == 1536);
}

TEST_CASE("Blocks over 1 MiB come from 20 MiB, those of 10 MiB and more from their own") {
  CachingAllocatorModel device;
  device.allocate(kMiB + 1);
  CHECK(device.now().reserved_bytes == 20 * kMiB);
  device.allocate(9 * kMiB);
  CHECK(device.now().reserved_bytes == 20 * kMiB);
  device.allocate(9 * kMiB);  // 20 MiB have 9.99 left: it fits
  CHECK(device.now().reserved_bytes == 20 * kMiB);
  device.allocate(10 * kMiB);
  CHECK(device.now().reserved_bytes == 30 * kMiB);
  device.allocate(11 * kMiB);  // in steps of 2 MiB
  CHECK(device.now().reserved_bytes == 42 * kMiB);
}

TEST_CASE("What is left of a large block is not split off if it is 1 MiB or less") {
  CachingAllocatorModel device;
  device.free(device.allocate(12 * kMiB));
  const int64_t most = device.allocate(11 * kMiB);
  CHECK(device.now().allocated_bytes == 12 * kMiB);  // the whole block counts
  device.free(most);
  device.allocate(10 * kMiB);
  CHECK(device.now().allocated_bytes == 10 * kMiB);
  device.allocate(2 * kMiB);  // the rest of the same segment
  CHECK(device.now().reserved_bytes == 12 * kMiB);
}

TEST_CASE("Neighbours are joined when they are freed, in any order") {
  for (const std::vector<size_t>& order : {std::vector<size_t>{0, 1, 2}, {2, 1, 0}, {0, 2, 1}, {1, 0, 2}}) {
    CachingAllocatorModel device;
    std::vector<int64_t> parts;
    for (int i = 0; i < 3; ++i) parts.push_back(device.allocate(6 * kMiB));
    CHECK(device.now().reserved_bytes == 20 * kMiB);
    for (const size_t part : order) device.free(parts[part]);
    device.allocate(20 * kMiB);
    CHECK(device.now().reserved_bytes == 20 * kMiB);
  }
}

TEST_CASE("The smallest free block that fits is taken") {
  CachingAllocatorModel device;
  const int64_t large = device.allocate(40 * kMiB), small = device.allocate(30 * kMiB);
  device.free(large);
  device.free(small);
  device.allocate(29 * kMiB);
  device.allocate(40 * kMiB);
  CHECK(device.now().reserved_bytes == 70 * kMiB);
}

TEST_CASE("Before memory is said to be out, segments that nobody uses are given back") {
  CachingAllocatorModel device(100 * kMiB);
  const int64_t first = device.allocate(60 * kMiB);
  CHECK(device.allocate(60 * kMiB) == -1);
  CHECK(device.now().reserved_bytes == 60 * kMiB);
  device.free(first);
  CHECK(device.allocate(80 * kMiB) >= 0);
  CHECK(device.now().reserved_bytes == 80 * kMiB);
}

TEST_CASE("A segment of which a part is in use is not given back") {
  CachingAllocatorModel device(100 * kMiB);
  const int64_t whole = device.allocate(60 * kMiB);
  device.free(whole);
  const int64_t part = device.allocate(20 * kMiB);
  CHECK(device.allocate(70 * kMiB) == -1);
  device.free(part);
  CHECK(device.allocate(70 * kMiB) >= 0);
}

TEST_CASE("A trace is replayed to its peaks, and fits where they do") {
  MemoryTrace trace;
  trace.blocks = {{.bytes = 30 * kMiB}, {.bytes = 0}, {.bytes = 12 * kMiB}, {.bytes = 40 * kMiB}};
  trace.events = {1, 2, 3, -1, 4, -2, -3, -4};
  const DeviceMemory peak = replay(trace);
  CHECK(peak.allocated_bytes == 52 * kMiB);
  CHECK(peak.reserved_bytes == 82 * kMiB);
  CHECK(fits(trace, 82 * kMiB));
  CHECK(fits(trace, 52 * kMiB));  // the first segment is given back for the last
  CHECK(!fits(trace, 52 * kMiB - 1));
}

}  // namespace
}  // namespace trainkit
