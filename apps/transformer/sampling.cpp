#include "transformer/sampling.h"

#include <cmath>
#include <numbers>
#include <vector>

#include "trainkit/core/status.h"

namespace trainkit::transformer {
namespace {

TokenId first_token(const Tokenizer& tokenizer) {
  if (const auto end = document_end_token(tokenizer)) return *end;
  const auto line_end = tokenizer.encode("\n");
  return line_end.ok() ? line_end->front() : 0;
}

/// Shows the ends of documents of the char tokenizer as GPT-2's are shown.
std::string visible(const std::string& text) {
  std::string out;
  for (const char c : text) c == kDocumentEnd ? out.append(Gpt2Tokenizer::kEndOfText) : out.append(1, c);
  return out;
}

}  // namespace

absl::StatusOr<std::string> sample_text(Transformer& model, const Tokenizer& tokenizer, const std::string& prompt,
                                        const GenerateOptions& options) {
  TRAINKIT_ASSIGN_OR_RETURN(const std::vector<TokenId> encoded, tokenizer.encode(prompt));
  std::vector<int64_t> ids(encoded.begin(), encoded.end());
  if (ids.empty()) ids.push_back(first_token(tokenizer));
  const std::vector<int64_t> generated = generate(model, ids, options);
  const std::vector<TokenId> tokens(generated.begin(), generated.end());
  TRAINKIT_ASSIGN_OR_RETURN(const std::string continuation, tokenizer.decode(tokens));
  return replace_invalid_utf8(visible(prompt + continuation));
}

std::map<std::string, double> language_metrics(double loss, const Corpus& corpus) {
  return {{"perplexity", std::exp(loss)},
          {"bits_per_character", loss / std::numbers::ln2 / corpus.characters_per_token}};
}

}  // namespace trainkit::transformer
