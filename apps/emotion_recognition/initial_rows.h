#pragma once
/// Puts the rows of --init_from into the order of this run's labels.

#include <absl/status/status.h>

#include <string>
#include <vector>

#include "emotion_recognition/options.h"
#include "trainkit/app/app.h"

namespace trainkit::emotion {

/// Implements App::adapt_weights: rows of the classifier by the labels of the weights' run. Errors: those of
/// load_labels; weights.meaning (exit code 5) if no label is known, and for another fusion.
absl::Status adapt_rows(const RunWeights& from, const std::vector<std::string>& labels, const EmotionOptions& options,
                        LoadWeightsOptions& load, RunFacts& facts);

}  // namespace trainkit::emotion
