#pragma once
/// Whether two runs of a trainer left the same, byte for byte.

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trainkit::tool {

/// One kind of thing that two runs left.
struct Compared {
  std::string what = {};
  /// How much of it was compared: "12 checkpoints, 34.1 KiB". Empty: the runs have none.
  std::string amount = {};
  /// Where they differ first, and how; empty if nowhere.
  std::string difference = {};
};

/// Compares the output folders of two runs that have ended:
///
///   weights, optimizer, order of rows, other state   of every checkpoint that both have, the last one among them
///   logged scalars   every record of metrics.jsonl, but for what a clock measured (rates, fractions, memory) and the
///                    names in `ignored`
///   TensorBoard      the step of every event, in order: none twice, none missing
///   files            every other file of the folder itself but config.yaml, summary.json and error.json
///
/// An error of exit code 5 if a checkpoint cannot be read, 6 if a file cannot.
absl::StatusOr<std::vector<Compared>> compare_runs(const std::string& reference, const std::string& other,
                                                   const std::vector<std::string>& ignored = {});

}  // namespace trainkit::tool
