#pragma once
/// Divides clips into the folds of a cross-validation (--folds, --group).

#include <absl/status/statusor.h>

#include <cstdint>
#include <vector>

#include "emotion_recognition/clips.h"

namespace trainkit::emotion {

/// Returns the fold, 0 to `count` - 1, of each clip. Clips of a group (Clip::group; without one each clip is its own
/// group) are in the same fold. The largest group comes first, each goes to the fold with the fewest clips; groups of
/// equal size are in an order drawn from `seed`. Error: data.folds (exit code 4) for fewer groups than folds.
/// Source: sklearn.model_selection.GroupKFold, which orders groups of equal size by name.
absl::StatusOr<std::vector<int64_t>> assign_folds(const ClipList& list, int64_t count, uint64_t seed);

/// Rows of the training, validation and test parts in the run of fold `index`: the test is that fold, the validation
/// part the next one, and the rest is trained on.
struct FoldRows {
  std::vector<int64_t> train, validation, test;
};
FoldRows rows_of_fold(const std::vector<int64_t>& folds, int64_t count, int64_t index);

/// Returns the clips `rows` of `list`.
ClipList select(const ClipList& list, const std::vector<int64_t>& rows);

}  // namespace trainkit::emotion
