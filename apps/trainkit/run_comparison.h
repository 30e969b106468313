#pragma once
/// Compares the output folders of two training runs byte for byte.

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trainkit::tool {

/// Result of comparing one kind of output.
struct Compared {
  std::string what = {};
  /// Amount compared: "12 checkpoints, 34.1 KiB". Empty if the runs have none.
  std::string amount = {};
  /// First difference and its place; empty if there is none.
  std::string difference = {};
};

/// Compares the output folders of two runs that have ended. Returns one entry per kind:
///
///   weights, optimizer, order of rows, other state   every checkpoint that both runs have; the last one must be in
///   both logged scalars   every record of metrics.jsonl, without measured values (rates, fractions, seconds, bytes,
///                    utilisation, queue depth, time) and without the names in `ignored`
///   TensorBoard      the step of every event, in order: no duplicates, no gaps
///   files            every other file directly in the folder, except config.yaml, summary.json, error.json, run.json,
///                    report.html and best.before.safetensors
///
/// Errors: exit code 5 if a checkpoint cannot be read, 6 if a file cannot.
absl::StatusOr<std::vector<Compared>> compare_runs(const std::string& reference, const std::string& other,
                                                   const std::vector<std::string>& ignored = {});

}  // namespace trainkit::tool
