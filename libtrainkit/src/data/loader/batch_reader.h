#pragma once
/// Reads the rows of one batch into a slot and handles rows that cannot be read.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "data/datasets/reading_row.h"
#include "data/loader/slot.h"
#include "data/loader/team_read.h"

namespace trainkit::detail {

/// Positions [begin, begin + rows) of the order of `epoch`.
struct BatchPlan {
  int64_t epoch = 0;
  int64_t begin = 0;
  int64_t rows = 0;
};

/// Shared by all threads. `Scratch` holds the state of one thread.
class BatchReader {
 public:
  BatchReader(std::shared_ptr<const Dataset> dataset, std::shared_ptr<const Sampler> sampler, OnError on_error,
              int64_t max_bad_samples);

  struct Scratch {
    std::vector<RowKey> keys;
  };

  /// Fills `slot` (prepared) with the rows of `plan`: a pure function of the plan, whichever thread calls it. Stores
  /// errors in the slot and never throws. With a `team`, other readers take part and read `rows_per_part` rows at a
  /// time.
  void read(const BatchPlan& plan, Slot& slot, Scratch& scratch, TeamRead* team = nullptr,
            int64_t rows_per_part = 1) const noexcept;

  /// Maximum number of consecutive bad rows before the search for a replacement fails.
  static constexpr int64_t kMaxReplacements = 1000;

  const Dataset& dataset() const { return *dataset_; }
  const Sampler& sampler() const { return *sampler_; }
  /// Returns "row 17 (photo.jpg)", or "row 17" if the dataset gives no name.
  std::string row_name(int64_t index) const noexcept;

 private:
  absl::Status check_indices(std::span<const int64_t> indices, const BatchPlan& plan) const;
  void read_row_by_row(const BatchPlan& plan, Slot& slot, Scratch& scratch) const;
  bool read_row(const RowKey& key, Slot& slot, int64_t at) const;
  bool read_replacement(const BatchPlan& plan, int64_t position, Slot& slot, int64_t at) const;

  std::shared_ptr<const Dataset> dataset_;
  std::shared_ptr<const Sampler> sampler_;
  uint64_t rows_;  // rows of the dataset
  OnError on_error_;
  int64_t max_bad_samples_;
};

/// Makes the error of an unreadable row. Keeps the exit code, id and hint of an Error in `cause`.
absl::Status row_error(const BadSample& row, const absl::Status& cause);

}  // namespace trainkit::detail
