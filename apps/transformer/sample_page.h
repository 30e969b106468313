#pragma once
/// Keeps the texts that a model has generated during a run, and shows them in its report.

#include <absl/status/status.h>

#include <cstdint>
#include <limits>
#include <string>

#include "trainkit/train/evaluate.h"

namespace trainkit::transformer {

/// A generated text. `title` describes the weights and the sampling: "step 200, temperature 0.8".
struct Sample {
  int64_t step = 0;
  std::string title = {};
  std::string text = {};
};

/// Step of the sample at the end of a run: the next sample of a resumed run replaces it.
inline constexpr int64_t kLastSample = std::numeric_limits<int64_t>::max();

/// Adds a sample to the last 100 in `<folder>/samples.json` and writes `<folder>/report.json` with all of them, the
/// latest first, and the scores of `best` if it has any. `folder` is results_dir(). A sample replaces those of its own
/// and of later steps, which a resumed run generates again. Errors: exit code 6.
absl::Status add_sample(const std::string& folder, const Sample& sample, const Metrics& best);

}  // namespace trainkit::transformer
