#include "trainkit/memory/memory_trace.h"

#include <cmath>

#include "memory/scalable_trace.h"
#include "test_util.h"
#include "trainkit/core/error.h"

namespace trainkit {
namespace {

/// Builds a trace by hand.
class Writer {
 public:
  int32_t allocate(int64_t bytes, MemoryClass kind = MemoryClass::kActivations) {
    trace.blocks.push_back({.bytes = bytes, .kind = kind, .phase = phase});
    trace.events.push_back(static_cast<int32_t>(trace.blocks.size()));
    return trace.events.back();
  }
  void free(int32_t block) {
    trace.blocks[static_cast<size_t>(block - 1)].freed_in = phase;
    trace.events.push_back(-block);
  }
  void pass(int64_t bytes) { free(allocate(bytes)); }

  MemoryTrace trace;
  int32_t phase = 0;
};

/// A step with its peak in forward at small batches (a fixed buffer next to the activations) and in backward at large
/// ones; `extra` adds a temporary block, as a kernel with another algorithm does.
MemoryTrace step_of(int64_t rows, bool extra = false) {
  Writer w;
  w.allocate(5000, MemoryClass::kWeights);
  w.phase = 1;
  const int32_t kept = w.allocate(100 * rows);
  w.pass(4000);
  if (extra) w.pass(64);
  const int32_t also = w.allocate(20 * rows + 8);
  for (int i = 0; i < 10; ++i) w.pass(rows + i);
  w.phase = 2;
  const int32_t gradient = w.allocate(5000, MemoryClass::kGradients);
  const int32_t transient = w.allocate(150 * rows);
  w.free(also);
  w.free(kept);
  w.free(transient);
  w.phase = 3;
  w.free(gradient);
  return w.trace;
}

int64_t peak_of(int64_t rows) { return 5000 + std::max(100 * rows + 4000, 270 * rows + 8 + 5000); }

TEST_CASE("The peak of a trace is the maximum of allocated bytes, with its classes") {
  const MemoryBytes peak = step_of(10).peak();
  CHECK(peak.total() == peak_of(10));
  CHECK(peak[MemoryClass::kWeights] == 5000);
  CHECK(peak[MemoryClass::kGradients] == 5000);
  CHECK(peak[MemoryClass::kActivations] == 2708);
  CHECK(step_of(10).live().total() == 5000);
}

TEST_CASE("A trace at another batch is exact even if the peak moves; a line through two peaks is not") {
  const auto at_any = ScalableTrace::create(step_of(2), 2, step_of(4), 4).value();
  CHECK(at_any.unmatched() == 0);
  for (const int64_t rows : {1, 2, 3, 4, 7, 16, 33, 128, 1000}) {
    INFO(rows << " rows");
    const MemoryTrace predicted = at_any.at(rows), recorded = step_of(rows);
    CHECK(predicted.peak().by_class == recorded.peak().by_class);
    CHECK(predicted.live().total() == 5000);
    for (size_t i = 0; i < recorded.blocks.size(); ++i) CHECK(predicted.blocks[i].bytes == recorded.blocks[i].bytes);
  }
}

TEST_CASE("A block in only one of two traces does not shift the others") {
  const auto one_more = ScalableTrace::create(step_of(2), 2, step_of(4, /*extra=*/true), 4).value();
  CHECK(one_more.unmatched() == 1);
  CHECK(one_more.at(100).peak().total() == peak_of(100));
  const auto one_less = ScalableTrace::create(step_of(2, /*extra=*/true), 2, step_of(4), 4).value();
  CHECK(one_less.unmatched() == 0);
  CHECK(one_less.at(100).peak().total() == peak_of(100));
}

TEST_CASE("Traces of different work are refused") {
  Writer other;
  for (int i = 0; i < 20; ++i) other.pass(10 + i);
  const auto refused = ScalableTrace::create(step_of(2), 2, other.trace, 4);
  REQUIRE(!refused.ok());
  CHECK(refused.status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THROWS_AS(ScalableTrace::create(step_of(4), 4, step_of(2), 2).status().ok(), c10::ValueError);
}

TEST_CASE("Sizes that shrink with the batch are not extrapolated below zero") {
  Writer small, large;
  small.pass(100), large.pass(100);
  small.pass(100), large.pass(150);
  const auto trace = ScalableTrace::create(small.trace, 2, large.trace, 4).value();
  CHECK(trace.at(1).blocks[1].bytes == 75);
  CHECK_THROWS_AS(trace.at(0), c10::ValueError);
}

}  // namespace
}  // namespace trainkit
