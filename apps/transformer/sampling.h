#pragma once
/// Text generation, and metrics of language models.

#include <absl/status/statusor.h>

#include <map>
#include <string>

#include "trainkit/nn/transformer.h"
#include "trainkit/text/tokenizer.h"
#include "transformer/corpus.h"

namespace trainkit::transformer {

/// Returns `prompt` and its continuation as printable UTF-8. An empty prompt is replaced by the token that
/// ends a document, else by a line end, else by the first character of the vocabulary. Ends of documents are shown as
/// "<|endoftext|>". Errors of Tokenizer::encode.
absl::StatusOr<std::string> sample_text(Transformer& model, const Tokenizer& tokenizer, const std::string& prompt,
                                        const GenerateOptions& options);

/// Returns "perplexity" (e^loss) and "bits_per_character" (loss in bits per code point of the validation text) for a
/// mean loss in nats per token.
std::map<std::string, double> language_metrics(double loss, const Corpus& corpus);

}  // namespace trainkit::transformer
