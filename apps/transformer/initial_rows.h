#pragma once
/// Puts the rows of --init_from into the order of this run's tokens.

#include <absl/status/status.h>

#include "trainkit/app/app.h"
#include "trainkit/text/tokenizer.h"
#include "transformer/options.h"

namespace trainkit::transformer {

/// Implements App::adapt_weights: rows of the vocabulary by the characters in the tokenizer of the weights' run.
/// Errors: those of load_tokenizer; weights.meaning (exit code 5) if the tokenizers have no character in common or are
/// of different kinds, and for another number of heads.
absl::Status adapt_rows(const RunWeights& from, const Tokenizer& tokenizer, const TransformerOptions& options,
                        LoadWeightsOptions& load, RunFacts& facts);

}  // namespace trainkit::transformer
