#include "transformer/initial_rows.h"

#include <fmt/format.h>

#include "trainkit/app/initial_weights.h"
#include "trainkit/core/status.h"
#include "trainkit/nn/transformer.h"
#include "transformer/corpus.h"

namespace trainkit::transformer {
namespace {

std::vector<std::string> tokens_of(const Tokenizer& tokenizer) {
  std::vector<std::string> tokens;
  for (int64_t id = 0; id < tokenizer.vocab_size(); ++id)
    tokens.emplace_back(tokenizer.token_bytes(static_cast<TokenId>(id)));
  return tokens;
}

}  // namespace

absl::Status adapt_rows(const RunWeights& from, const Tokenizer& tokenizer, const TransformerOptions& options,
                        LoadWeightsOptions& load, RunFacts& facts) {
  const int64_t width = options.model.hidden_dim, default_heads = default_n_heads(width);
  if (setting_beside(from, "hidden_dim") == std::to_string(width)) {  // else the shapes differ
    const int64_t heads = options.model.n_heads == 0 ? default_heads : options.model.n_heads;
    TRAINKIT_RETURN_IF_ERROR(
        check_setting(from, "n_heads", std::to_string(heads), "number of heads", std::to_string(default_heads)));
  }
  const std::string path = file_beside(from, kTokenizerFile);
  if (path.empty()) {
    facts.emplace_back("warning:",
                       fmt::format("no {} next to {}: row i of its embedding is taken for token i of this run's {} "
                                   "tokenizer",
                                   kTokenizerFile, from.file, tokenizer.name()));
    return absl::OkStatus();
  }
  TRAINKIT_ASSIGN_OR_RETURN(const auto saved, load_tokenizer(path));
  if (saved->digest() == tokenizer.digest()) return absl::OkStatus();
  const RowNames characters{
      "characters", tokens_of(*saved), tokens_of(tokenizer), {"transformer.wte.weight", "lm_head.weight"}};
  if (saved->name() != tokenizer.name() || tokenizer.name() != "char") {
    const bool same = saved->name() == tokenizer.name();
    if (same && characters.in_file == characters.here)
      return absl::OkStatus();  // only special tokens are parsed otherwise
    return other_meaning(path, "", "is another tokenizer than this run's",
                         fmt::format("{}, {} tokens", saved->name(), saved->vocab_size()),
                         fmt::format("{}, {} tokens", tokenizer.name(), tokenizer.vocab_size()),
                         same ? "give the --vocab and --merges of that run" : "--tokenizer " + saved->name());
  }
  return take_rows(from, path, {characters}, load, facts);
}

}  // namespace trainkit::transformer
