#pragma once
/// Mixing of several texts by weight.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trainkit/data/sampler.h"
#include "trainkit/report/summary.h"
#include "trainkit/train/evaluate.h"

namespace trainkit::transformer {

/// Texts that are mixed by weight, in the order of --input.
class Mixture {
 public:
  struct Part {
    std::string name;
    /// Windows of the text.
    int64_t rows = 0;
    double weight = 0;
  };

  /// Needs one part or more, each with rows and a weight > 0.
  Mixture(std::vector<Part> parts, uint64_t seed);

  /// Order of the rows of all texts, joined; see mixture_sampler.
  const std::shared_ptr<const Sampler>& order() const { return order_; }

  /// Returns the fact "mixture": shares, and passes over each text per epoch.
  RunFacts describe() const;

  /// Returns the number of rows of each text in `epochs` whole epochs and the first `positions` positions of the next
  /// one, counted in the order itself. An epoch ends after `positions_per_epoch` positions; the rest is dropped.
  std::vector<int64_t> count_rows(int64_t epochs, int64_t positions, int64_t positions_per_epoch) const;
  /// Returns "mixture: a.txt 70.1 % (weight 0.7), ... of 1200 rows" for the counted rows.
  std::string describe_shares(const std::vector<int64_t>& rows) const;
  /// Returns the share of each text as "input_share_1", ...
  Metrics shares(const std::vector<int64_t>& rows) const;

 private:
  void add_rows(int64_t epoch, int64_t begin, int64_t end, int64_t factor, std::vector<int64_t>& counts) const;

  std::vector<Part> parts_;
  std::shared_ptr<const Sampler> order_;
};

}  // namespace trainkit::transformer
