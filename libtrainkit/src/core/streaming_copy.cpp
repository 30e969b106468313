#include "core/streaming_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/parallel.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace trainkit::detail {
namespace {

constexpr size_t kLine = 64;
/// Bytes of one part of a copy; threads take a few parts at a time.
constexpr size_t kPart = size_t{256} << 10;
/// Copies of fewer bytes in total stay in the caches.
constexpr size_t kStreamFrom = size_t{8} << 20;

}  // namespace

// The sfence makes streaming stores visible before the thread signals that it has finished.
void streaming_copy(void* to_bytes, const void* from_bytes, size_t bytes) {
  auto* target = static_cast<char*>(to_bytes);
  const auto* source = static_cast<const char*>(from_bytes);
  size_t done = 0;
#ifdef __SSE2__
  for (; done + kLine <= bytes; done += kLine) {
    const auto* from = reinterpret_cast<const __m128i*>(source + done);
    auto* to = reinterpret_cast<__m128i*>(target + done);
    const __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
    const __m128i c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
  }
  _mm_sfence();
#endif
  std::memcpy(target + done, source + done, bytes - done);
}

void copy_in_parallel(std::span<const ByteCopy> copies) {
  std::vector<ByteCopy> parts;
  size_t total = 0;
  for (const ByteCopy& copy : copies) {
    total += copy.bytes;
    for (size_t at = 0; at < copy.bytes; at += kPart) {
      parts.push_back({static_cast<char*>(copy.target) + at, static_cast<const char*>(copy.source) + at,
                       std::min(kPart, copy.bytes - at)});
    }
  }
  const bool streams = total >= kStreamFrom;
  parallel_for(0, static_cast<int64_t>(parts.size()), 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const ByteCopy& part = parts[static_cast<size_t>(i)];
      if (streams) {
        streaming_copy(part.target, part.source, part.bytes);
      } else {
        std::memcpy(part.target, part.source, part.bytes);
      }
    }
  });
}

}  // namespace trainkit::detail
