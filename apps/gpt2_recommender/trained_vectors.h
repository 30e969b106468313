#pragma once
/// Reads users, items and vectors of a trained run.

#include <absl/status/statusor.h>

#include "gpt2_recommender/interactions.h"
#include "gpt2_recommender/models.h"
#include "gpt2_recommender/options.h"
#include "trainkit/app/app.h"

namespace trainkit::rec {

/// Reads the users, items and interactions that the run's folder holds. Errors: exit code 5.
absl::StatusOr<Interactions> open_catalog(const TrainedRun& run);

/// Loads the model of the run and returns its vectors, on its device. Errors: exit code 5; 2 for several devices.
absl::StatusOr<RankingVectors> load_vectors(const TrainedRun& run, const RecOptions& options,
                                            const Interactions& catalog);

}  // namespace trainkit::rec
