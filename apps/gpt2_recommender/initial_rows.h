#pragma once
/// Puts the rows of --init_from into the order of this run's users and items.

#include <absl/status/status.h>

#include "gpt2_recommender/interactions.h"
#include "gpt2_recommender/options.h"
#include "trainkit/app/app.h"

namespace trainkit::rec {

/// Implements App::adapt_weights: rows of users and items by the ids in the catalog of the weights' run, rows of
/// GPT-2's vocabulary by character if that is the characters of the texts. Errors: those of load_entities;
/// weights.meaning (exit code 5) if no user and no item is known.
absl::Status adapt_rows(const RunWeights& from, const Interactions& interactions, const RecOptions& options,
                        LoadWeightsOptions& load, RunFacts& facts);

}  // namespace trainkit::rec
