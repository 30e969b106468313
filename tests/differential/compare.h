#pragma once
/// Compares what two runs did.

#include <string>
#include <vector>

#include "record.h"

namespace trainkit::differential {

struct Tolerance {
  double relative = 1e-7;  ///< of a tensor's norm; 0: bit by bit
  /// The other side with the rows of each batch in other orders: four times their distance passes too.
  std::vector<Record> reordered = {};
  /// The other side in float64: what is no further from it than four times the other side is passes too.
  const Record* exact = nullptr;
  bool only_common = false;  ///< compares the names that both have
};

/// Returns a line for each difference, those that come first in the program first. Two runs that end in an error are
/// equal, whatever the errors say.
std::vector<std::string> compare(const Record& ours, const Record& theirs, const Tolerance& tolerance);

}  // namespace trainkit::differential
