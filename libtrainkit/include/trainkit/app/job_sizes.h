#pragma once
/// What the units of a large job take: `trainkit doctor` and `plan` quote these numbers, docs/job-size.md explains
/// them.

#include <array>
#include <cstdint>

namespace trainkit {

/// What one unit of a job takes. docs/job-size.md has the same table, and bench/growth/run.py compares both with the
/// measured rows.
struct JobCost {
  /// Row of the table.
  const char* unit;
  /// Bytes of memory and of the output disk.
  double memory, disk;
};

inline constexpr std::array<JobCost, 6> kJobCosts = {{
    {"parameter", 16, 12},    // float32: weight, gradient, two moments of AdamW; a checkpoint without the gradient
    {"scene value", 5.2, 0},  // a band of a pixel in float32, 1.3 times: in training
    {"event", 130, 12},       // an interaction of the recommender: read, split, and ranked; a line of split.tsv
    {"character", 0, 1},      // of a text with at most 256 characters
    {"GPT-2 token", 0, 2},    // mapped: pages are dropped when memory is short
    {"record", 0, 300},       // of metrics.jsonl
}};

}  // namespace trainkit
