#include "trainkit/memory/memory_trace.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include "memory/scalable_trace.h"
#include "trainkit/core/error.h"

namespace trainkit {
namespace {

using Block = MemoryTrace::Block;

// Note [Trace alignment]
//
// ScalableTrace matches the blocks of two traces of the same work at two batch sizes, phase by phase (align):
//
// 1. Blocks at the start and at the end of a phase are matched in order while they are alike (same_block). In most
//    phases this matches everything in linear time.
// 2. The blocks in between are matched by a longest common subsequence. Its table is limited to 128 MiB; beyond that,
//    the blocks stay unmatched and count as growing with the batch.
//
// Two blocks are alike if class, stream, freeing phase and lifetime agree. In addition, the block of the larger batch
// must not be smaller than the other one, nor larger by more than the ratio of the batch sizes. The lifetime is the
// number of events between allocation and end, and may differ by the two events of a block that exists at one of the
// sizes only. It is capped at 32 events, and is 0 for blocks that outlive their phase.

/// Returns the lifetime of each block in events, capped; 0 if the block outlives its phase. See Note [Trace alignment].
std::vector<int32_t> lifetimes(const MemoryTrace& trace) {
  constexpr int32_t kLong = 32;
  std::vector<int32_t> begin(trace.blocks.size()), lifetime(trace.blocks.size(), 0);
  for (size_t i = 0; i < trace.events.size(); ++i) {
    const int32_t event = trace.events[i];
    if (event == MemoryTrace::kEmptyCache) continue;
    const auto block = static_cast<size_t>(std::abs(event) - 1);
    if (event > 0) {
      begin[block] = static_cast<int32_t>(i);
    } else if (trace.blocks[block].freed_in == trace.blocks[block].phase) {
      lifetime[block] = std::min(static_cast<int32_t>(i) - begin[block], kLong);
    }
  }
  return lifetime;
}

/// The blocks of one phase in order of allocation.
struct Phase {
  std::span<const Block> blocks;
  std::span<const int32_t> lifetimes;
  size_t offset = 0;  // index of the first block among all blocks

  size_t size() const { return blocks.size(); }
};

std::vector<Phase> split_phases(const MemoryTrace& trace, const std::vector<int32_t>& lifetimes) {
  std::vector<Phase> found;
  const std::span blocks(trace.blocks);
  for (size_t begin = 0; begin < blocks.size();) {
    size_t end = begin;
    while (end < blocks.size() && blocks[end].phase == blocks[begin].phase) ++end;
    found.resize(static_cast<size_t>(blocks[begin].phase) + 1);
    found.back() = {blocks.subspan(begin, end - begin), std::span(lifetimes).subspan(begin, end - begin), begin};
    begin = end;
  }
  return found;
}

/// Returns whether two blocks may be the same at two batch sizes, the larger `ratio` times the smaller.
bool same_block(const Phase& small, size_t i, const Phase& large, size_t j, double ratio) {
  const Block& a = small.blocks[i];
  const Block& b = large.blocks[j];
  return a.kind == b.kind && a.stream == b.stream && a.freed_in == b.freed_in &&
         std::abs(small.lifetimes[i] - large.lifetimes[j]) <= 2 && a.bytes <= b.bytes &&
         static_cast<double>(b.bytes) <= static_cast<double>(a.bytes) * ratio;
}

/// Writes to `match`, for each block of `large`, the index of its counterpart in `small`. See Note [Trace alignment].
void align(const Phase& small, const Phase& large, double ratio, std::vector<int32_t>& match) {
  const auto set_match = [&](size_t i, size_t j) { match[large.offset + j] = static_cast<int32_t>(small.offset + i); };
  const auto same = [&](size_t i, size_t j) { return same_block(small, i, large, j, ratio); };
  size_t first = 0, n = small.size(), m = large.size();
  for (; first < std::min(n, m) && same(first, first); ++first) set_match(first, first);
  for (; std::min(n, m) > first && same(n - 1, m - 1); --n, --m) set_match(n - 1, m - 1);

  constexpr size_t kMostCells = size_t{64} << 20;
  const size_t width = m - first + 1;
  if (n == first || m == first || (n - first + 1) * width > kMostCells) return;
  std::vector<uint16_t> longest((n - first + 1) * width, 0);  // length of the longest common subsequence from (i, j) on
  const auto at = [&](size_t i, size_t j) -> uint16_t& { return longest[(i - first) * width + (j - first)]; };
  for (size_t i = n; i-- > first;) {
    for (size_t j = m; j-- > first;) {
      at(i, j) = same(i, j) ? static_cast<uint16_t>(at(i + 1, j + 1) + 1) : std::max(at(i + 1, j), at(i, j + 1));
    }
  }
  for (size_t i = first, j = first; i < n && j < m;) {
    if (same(i, j)) {
      set_match(i++, j++);
    } else {
      at(i + 1, j) >= at(i, j + 1) ? ++i : ++j;
    }
  }
}

}  // namespace

const char* to_string(MemoryClass kind) {
  constexpr std::array<const char*, kMemoryClasses> kNames = {"weights", "gradients", "optimizer", "activations",
                                                              "batch",   "cache",     "workspace", "libraries"};
  return kNames[static_cast<size_t>(kind)];
}

int64_t MemoryBytes::total() const { return std::accumulate(by_class.begin(), by_class.end(), int64_t{0}); }

MemoryBytes MemoryTrace::peak() const {
  MemoryBytes now, most;
  int64_t total = 0, most_total = 0;
  for (const int32_t event : events) {
    if (event == kEmptyCache) continue;
    const Block& block = blocks[static_cast<size_t>(std::abs(event) - 1)];
    const int64_t change = event > 0 ? block.bytes : -block.bytes;
    now[block.kind] += change;
    total += change;
    if (total > most_total) {
      most_total = total;
      most = now;
    }
  }
  return most;
}

MemoryBytes MemoryTrace::live() const {
  MemoryBytes bytes;
  for (const Block& block : blocks) {
    if (block.freed_in == kNever) bytes[block.kind] += block.bytes;
  }
  return bytes;
}

MemoryTrace MemoryTrace::without(MemoryClass kind) const {
  MemoryTrace rest;
  std::vector<int32_t> place(blocks.size(), 0);
  for (const int32_t event : events) {
    if (event == kEmptyCache) {
      rest.events.push_back(event);
      continue;
    }
    const auto block = static_cast<size_t>(std::abs(event) - 1);
    if (blocks[block].kind == kind) continue;
    if (event > 0) {
      rest.blocks.push_back(blocks[block]);
      place[block] = static_cast<int32_t>(rest.blocks.size());
    }
    rest.events.push_back(event > 0 ? place[block] : -place[block]);
  }
  return rest;
}

absl::StatusOr<ScalableTrace> ScalableTrace::create(const MemoryTrace& small, int64_t small_batch, MemoryTrace large,
                                                    int64_t large_batch) {
  TORCH_CHECK_VALUE(0 < small_batch && small_batch < large_batch, "expected 0 < small_batch < large_batch, got ",
                    small_batch, " and ", large_batch);
  const std::vector<int32_t> small_lifetimes = lifetimes(small), large_lifetimes = lifetimes(large);
  const auto small_phases = split_phases(small, small_lifetimes), large_phases = split_phases(large, large_lifetimes);
  std::vector<int32_t> match(large.blocks.size(), -1);
  const double ratio = static_cast<double>(large_batch) / static_cast<double>(small_batch);
  for (size_t phase = 0; phase < std::min(small_phases.size(), large_phases.size()); ++phase) {
    align(small_phases[phase], large_phases[phase], ratio, match);
  }

  ScalableTrace scalable;
  scalable.large_batch_ = large_batch;
  for (size_t i = 0; i < match.size(); ++i) {
    const auto bytes = static_cast<double>(large.blocks[i].bytes);
    const auto rows = static_cast<double>(large_batch - small_batch);
    const bool matched = match[i] >= 0;
    scalable.bytes_per_row_.push_back(
        matched ? (bytes - static_cast<double>(small.blocks[static_cast<size_t>(match[i])].bytes)) / rows
                : bytes / static_cast<double>(large_batch));
    scalable.unmatched_ += matched ? 0 : 1;
  }
  if (scalable.unmatched_ * 10 > static_cast<int64_t>(match.size())) {
    return to_status(
        {.exit_code = ExitCode::kBug,
         .id = "memory.trace",
         .problem = "allocations differ between the two batch sizes: " + std::to_string(scalable.unmatched_) + " of " +
                    std::to_string(match.size()) + " blocks have no counterpart"},
        absl::StatusCode::kFailedPrecondition);
  }
  scalable.trace_ = std::move(large);
  return scalable;
}

MemoryTrace ScalableTrace::at(int64_t batch) const {
  TORCH_CHECK_VALUE(batch >= 1, "batch must be >= 1, got ", batch);
  MemoryTrace trace = trace_;
  const auto more = static_cast<double>(batch - large_batch_);
  for (size_t i = 0; i < trace.blocks.size(); ++i) {
    const auto grown = static_cast<int64_t>(std::llround(bytes_per_row_[i] * more));
    trace.blocks[i].bytes = std::max<int64_t>(trace.blocks[i].bytes + grown, 0);
  }
  return trace;
}

}  // namespace trainkit
