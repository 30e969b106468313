#include "transformer/sampling.h"

#include "test_util.h"

using namespace trainkit;
using namespace trainkit::transformer;

namespace {

Transformer small_model(int64_t vocab_size) {
  torch::manual_seed(1);
  return Transformer(TransformerConfig{.vocab_size = vocab_size, .block_size = 8, .n_layers = 1, .hidden_dim = 8});
}

}  // namespace

TEST_CASE("A sample is the prompt and its continuation", "[apps][sampling]") {
  const auto tokenizer = CharTokenizer::from_text("abc\n").value();
  Transformer model = small_model(4);
  const std::string text = sample_text(model, *tokenizer, "ab", {.max_tokens = 20, .seed = 3}).value();
  CHECK(text.size() == 22);
  CHECK(text.starts_with("ab"));
  CHECK(sample_text(model, *tokenizer, "ab", {.max_tokens = 20, .seed = 3}).value() == text);
  CHECK(sample_text(model, *tokenizer, "", {.max_tokens = 5}).value().size() == 5);
  CHECK(error_of(sample_text(model, *tokenizer, "abX", {}).status())->id == "data.tokens");
}

TEST_CASE("Perplexity is exp(loss), and bits per character use the number of characters per token",
          "[apps][sampling]") {
  const Corpus corpus{.characters_per_token = 4};
  const auto metrics = language_metrics(std::log(8.0), corpus);
  CHECK(metrics.at("perplexity") == Approx(8));
  CHECK(metrics.at("bits_per_character") == Approx(3.0 / 4));
}
