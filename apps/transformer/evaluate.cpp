#include "transformer/evaluate.h"

#include <fmt/format.h>

#include <cmath>
#include <numbers>

#include "trainkit/app/placement.h"
#include "trainkit/core/status.h"
#include "trainkit/logging/format.h"
#include "transformer/corpus.h"
#include "transformer/session.h"
#include "transformer/text_dataset.h"

namespace trainkit::transformer {
namespace {

/// Returns the mean loss over all tokens of the text but the first. It sums like the trainer's evaluation, so the
/// validation text gives the validation loss.
absl::StatusOr<double> mean_loss(const TrainedRun& run, const TransformerOptions& options, const Corpus& corpus) {
  const auto windows = std::make_shared<const TokenWindows>(
      corpus.tokens, TokenWindowsOptions{.block_size = options.block_size, .whole = true});
  const int64_t vocab_size = corpus.tokenizer->vocab_size();
  TRAINKIT_ASSIGN_OR_RETURN(const Predictor predictor,
                            run.load([&] { return create_model(options, vocab_size); }, "windows"));
  double sum = 0;
  TRAINKIT_RETURN_IF_ERROR(predictor
                               .run(
                                   windows,
                                   [](TransformerImpl& model, const Batch& rows) {
                                     return language_model_loss(model.forward(rows["x"]), rows["y"]);
                                   },
                                   [&](const Batch& rows, const at::Tensor& loss) {
                                     sum += loss.item<double>() *
                                            static_cast<double>(windows->targets(rows.row_indices()));
                                     return absl::OkStatus();
                                   })
                               .status());
  return sum / static_cast<double>(corpus.tokens.size() - 1);
}

/// Bytes of all tokens but the first, which is not predicted.
int64_t predicted_bytes(const Corpus& corpus) {
  int64_t first = 0;
  corpus.tokens.read(0, {&first, 1});
  return corpus.bytes - static_cast<int64_t>(corpus.tokenizer->token_bytes(static_cast<TokenId>(first)).size());
}

absl::StatusOr<int> evaluate_text(const TrainedRun& run, const TransformerOptions& options) {
  // The run's own settings name the training text.
  if (!run.parser.source("input").starts_with("--")) return bad_word("--input", "not given", "a text to evaluate");
  TRAINKIT_ASSIGN_OR_RETURN(const auto folder, temporary_folder());
  CorpusOptions text = corpus_options(options, *folder);
  TRAINKIT_ASSIGN_OR_RETURN(text.saved_tokenizer, run.file(kTokenizerFile, "its tokenizer"));
  TRAINKIT_ASSIGN_OR_RETURN(const Corpus corpus, tokenize_corpus(text, /*least_tokens=*/2, tokenize_progress()));
  TRAINKIT_ASSIGN_OR_RETURN(const double loss, mean_loss(run, options, corpus));
  const int64_t tokens = corpus.tokens.size() - 1, bytes = predicted_bytes(corpus);
  const double bits = loss / std::numbers::ln2 * static_cast<double>(tokens) / static_cast<double>(bytes);
  print_line(
      fmt::format("text           {}: {}, {} predicted tokens", corpus.source, format_size(corpus.bytes), tokens));
  print_line(fmt::format("loss           {:.6f}", loss));
  print_line(fmt::format("perplexity     {:.4f}", std::exp(loss)));
  print_line(fmt::format("bits per byte  {:.6f}", bits));
  return 0;
}

}  // namespace

AppCommand evaluate_command(App& app, const TransformerOptions& options) {
  return command_on_run(
      app, {.name = "evaluate",
            .summary = "Computes loss, perplexity and bits per byte of a text with a trained run.",
            .examples = {"trainkit-transformer evaluate runs/transformer --input other.txt",
                         "trainkit-transformer evaluate runs/transformer --input texts --batch_size 64 --device cuda"},
            .flags = {"input"},
            .body = [&options](TrainedRun& run) { return evaluate_text(run, options); }});
}

}  // namespace trainkit::transformer
