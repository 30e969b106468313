#include "core/device/streaming_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/machine/parallel.h"

#ifdef __SSE2__
#include <immintrin.h>
#endif

namespace trainkit::detail {

// Note [Streaming stores]
//
// A normal store reads the cache line before it changes it, and evicts other data from the cache. A streaming store of
// a whole line does neither. Memory that is not read again soon is written this way, because training needs the cache.
//
// - Streaming stores are fast only if they fill whole lines, one line after the other: the processor then combines the
//   stores of a line and writes it once.
// - Streaming stores are not ordered with other stores. The sfence in end_streaming() makes them visible before the
//   thread reports that its part is done.

namespace {

/// Bytes of one part of a copy; threads take a few parts at a time.
constexpr size_t kPart = size_t{256} << 10;
/// Copies of fewer bytes in total stay in the caches.
constexpr size_t kStreamFrom = size_t{8} << 20;

#ifdef __SSE2__
// The four stores of a line stay together, so that the write-combining buffer is flushed as one line.
void stream_lines_sse2(std::byte* to, const std::byte* from, int64_t lines) {
  for (; lines > 0; --lines, to += kStreamedLine, from += kStreamedLine) {
    const auto* source = reinterpret_cast<const __m128i*>(from);
    auto* target = reinterpret_cast<__m128i*>(to);
    const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
}

__attribute__((target("avx512f"))) void stream_lines_avx512(std::byte* to, const std::byte* from, int64_t lines) {
  for (; lines > 0; --lines, to += kStreamedLine, from += kStreamedLine) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
  }
}
#else
// Without streaming stores, lines are copied normally.
void copy_lines(std::byte* to, const std::byte* from, int64_t lines) { std::memcpy(to, from, lines * kStreamedLine); }
#endif

}  // namespace

#ifdef __SSE2__
const StreamLines stream_lines = __builtin_cpu_supports("avx512f") ? stream_lines_avx512 : stream_lines_sse2;
void end_streaming() { _mm_sfence(); }
#else
const StreamLines stream_lines = copy_lines;
void end_streaming() {}
#endif

void streaming_copy(void* target, const void* source, size_t bytes) {
  auto* const to = static_cast<std::byte*>(target);
  const auto* const from = static_cast<const std::byte*>(source);
  const size_t streamed = bytes / kStreamedLine * kStreamedLine;
  stream_lines(to, from, static_cast<int64_t>(streamed / kStreamedLine));
  end_streaming();
  if (bytes > streamed)
    std::memcpy(to + streamed, from + streamed, bytes - streamed);  // none of an empty tensor's null
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
