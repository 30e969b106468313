#pragma once
/// Divides the rows of a data set: into parts at random, and into the folds of a cross-validation.

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trainkit/data/dataset.h"

namespace trainkit {

/// Divides the rows at random, by `seed` alone. Part i has floor(shares[i] * size) rows, in the order of `dataset`; the
/// first parts get one of the remaining rows each. Throws c10::ValueError if the dataset is null, a share is negative
/// or not finite, or their sum is not 1. Source: torch.utils.data.random_split.
std::vector<std::shared_ptr<const Dataset>> random_split(std::shared_ptr<const Dataset> dataset,
                                                         const std::vector<double>& shares, uint64_t seed = 0);
/// The same for rows 0 .. size - 1: returns the rows of each part in ascending order.
std::vector<std::vector<int64_t>> random_split(int64_t size, const std::vector<double>& shares, uint64_t seed = 0);

/// Returns the fold, 0 to `count` - 1, of each row. `groups` has the name of each row's group, such as its speaker:
/// rows of a group are in the same fold, a row with an empty name is a group of its own. The largest group comes first,
/// each goes to the fold with the fewest rows; groups of equal size are in an order drawn from `seed`. Error:
/// data.folds (exit code 4) for fewer groups than folds, at `file`. Source: sklearn.model_selection.GroupKFold, which
/// orders groups of equal size by name.
absl::StatusOr<std::vector<int64_t>> group_folds(std::span<const std::string> groups, int64_t count, uint64_t seed,
                                                 const std::string& file = "");

/// Rows of the training, validation and test parts in the run of fold `index`: the test is that fold, the validation
/// part the next one, and the rest is trained on.
struct FoldRows {
  std::vector<int64_t> train, validation, test;
};
FoldRows rows_of_fold(std::span<const int64_t> folds, int64_t count, int64_t index);

}  // namespace trainkit
