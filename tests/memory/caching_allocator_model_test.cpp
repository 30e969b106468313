#include "memory/caching_allocator_model.h"

#include "test_util.h"

namespace trainkit {
namespace {

constexpr int64_t kMebibyte = int64_t{1} << 20;

// Values of torch.cuda.memory_allocated() and memory_reserved() after the same calls, by the rules in
// c10/cuda/CUDACachingAllocator.cpp.

TEST_CASE("Blocks are rounded to 512 bytes and small ones share a segment of 2 MiB") {
  CachingAllocatorModel device;
  const int64_t first = device.allocate(1);
  CHECK(device.now().allocated_bytes == 512);
  CHECK(device.now().reserved_bytes == 2 * kMebibyte);
  device.allocate(513);
  CHECK(device.now().allocated_bytes == 512 + 1024);
  CHECK(device.now().reserved_bytes == 2 * kMebibyte);
  device.free(first);
  CHECK(device.now().allocated_bytes == 1024);
  CHECK(device.now().reserved_bytes == 2 * kMebibyte);  // cached for later
  CHECK(device.peak().allocated_bytes == 1536);
}

TEST_CASE("Blocks over 1 MiB come from segments of 20 MiB, those of 10 MiB and more from their own segment") {
  CachingAllocatorModel device;
  device.allocate(kMebibyte + 1);
  CHECK(device.now().reserved_bytes == 20 * kMebibyte);
  device.allocate(9 * kMebibyte);
  CHECK(device.now().reserved_bytes == 20 * kMebibyte);
  device.allocate(9 * kMebibyte);  // 9.99 of 20 MiB are left: it fits
  CHECK(device.now().reserved_bytes == 20 * kMebibyte);
  device.allocate(10 * kMebibyte);
  CHECK(device.now().reserved_bytes == 30 * kMebibyte);
  device.allocate(11 * kMebibyte);  // in steps of 2 MiB
  CHECK(device.now().reserved_bytes == 42 * kMebibyte);
}

TEST_CASE("The remainder of a large block is not split off if it is 1 MiB or less") {
  CachingAllocatorModel device;
  device.free(device.allocate(12 * kMebibyte));
  const int64_t most = device.allocate(11 * kMebibyte);
  CHECK(device.now().allocated_bytes == 12 * kMebibyte);  // the whole block counts
  device.free(most);
  device.allocate(10 * kMebibyte);
  CHECK(device.now().allocated_bytes == 10 * kMebibyte);
  device.allocate(2 * kMebibyte);  // the remainder of the same segment
  CHECK(device.now().reserved_bytes == 12 * kMebibyte);
}

TEST_CASE("The remainder of a small block is split off down to 512 bytes") {
  CachingAllocatorModel device;
  device.allocate(kMebibyte);
  CHECK(device.now().allocated_bytes == kMebibyte);
  device.allocate(kMebibyte - 512);
  CHECK(device.now().allocated_bytes == 2 * kMebibyte - 512);
  device.allocate(512);
  CHECK(device.now().reserved_bytes == 2 * kMebibyte);
}

TEST_CASE("Adjacent free blocks are merged, in any order of freeing") {
  for (const std::vector<size_t>& order : {std::vector<size_t>{0, 1, 2}, {2, 1, 0}, {0, 2, 1}, {1, 0, 2}}) {
    CachingAllocatorModel device;
    std::vector<int64_t> parts;
    for (int i = 0; i < 3; ++i) parts.push_back(device.allocate(6 * kMebibyte));
    CHECK(device.now().reserved_bytes == 20 * kMebibyte);
    for (const size_t part : order) device.free(parts[part]);
    device.allocate(20 * kMebibyte);
    CHECK(device.now().reserved_bytes == 20 * kMebibyte);
  }
}

TEST_CASE("The smallest free block that fits is taken") {
  CachingAllocatorModel device;
  const int64_t large = device.allocate(40 * kMebibyte), small = device.allocate(30 * kMebibyte);
  device.free(large);
  device.free(small);
  device.allocate(29 * kMebibyte);
  device.allocate(40 * kMebibyte);
  CHECK(device.now().reserved_bytes == 70 * kMebibyte);
}

TEST_CASE("Unused segments are freed before an out of memory error") {
  CachingAllocatorModel device(100 * kMebibyte);
  const int64_t first = device.allocate(60 * kMebibyte);
  CHECK(device.allocate(60 * kMebibyte) == -1);
  CHECK(device.now().reserved_bytes == 60 * kMebibyte);
  device.free(first);
  CHECK(device.allocate(80 * kMebibyte) >= 0);
  CHECK(device.now().reserved_bytes == 80 * kMebibyte);
}

TEST_CASE("A segment with a block in use is not freed") {
  CachingAllocatorModel device(100 * kMebibyte);
  const int64_t whole = device.allocate(60 * kMebibyte);
  device.free(whole);
  const int64_t part = device.allocate(20 * kMebibyte);
  CHECK(device.allocate(70 * kMebibyte) == -1);
  device.free(part);
  CHECK(device.allocate(70 * kMebibyte) >= 0);
}

TEST_CASE("A replayed trace gives its peaks, and fits in devices that have this memory") {
  MemoryTrace trace;
  trace.blocks = {{.bytes = 30 * kMebibyte}, {.bytes = 0}, {.bytes = 12 * kMebibyte}, {.bytes = 40 * kMebibyte}};
  trace.events = {1, 2, 3, -1, 4, -2, -3, -4};
  const DeviceMemory peak = predict_device_memory(trace);
  CHECK(peak.allocated_bytes == 52 * kMebibyte);
  CHECK(peak.reserved_bytes == 82 * kMebibyte);
  CHECK(fits(trace, 82 * kMebibyte));
  CHECK(fits(trace, 52 * kMebibyte));  // the first segment is freed for the last
  CHECK(!fits(trace, 52 * kMebibyte - 1));
}

TEST_CASE("Free memory of one stream is not used for another until the driver has it back") {
  CachingAllocatorModel device(0);
  device.free(device.allocate(12 * kMebibyte, /*stream=*/1));
  const int64_t other = device.allocate(12 * kMebibyte, /*stream=*/2);
  CHECK(device.now().reserved_bytes == 24 * kMebibyte);
  device.empty_cache();
  CHECK(device.now().reserved_bytes == 12 * kMebibyte);
  CHECK(device.now().allocated_bytes == 12 * kMebibyte);
  device.free(other);
  device.allocate(12 * kMebibyte, /*stream=*/2);
  CHECK(device.peak().reserved_bytes == 24 * kMebibyte);
}

TEST_CASE("A trace is replayed with its streams and with its calls that free unused memory") {
  MemoryTrace trace;
  trace.blocks = {{.bytes = 30 * kMebibyte, .stream = 1}, {.bytes = 30 * kMebibyte, .stream = 2}};
  trace.events = {1, -1, 2};
  CHECK(predict_device_memory(trace).reserved_bytes == 60 * kMebibyte);
  trace.events = {1, -1, MemoryTrace::kEmptyCache, 2};
  CHECK(predict_device_memory(trace).reserved_bytes == 30 * kMebibyte);
}

}  // namespace
}  // namespace trainkit
