#include "transformer/evaluate.h"

#include <fmt/format.h>

#include <cmath>
#include <numbers>
#include <span>
#include <vector>

#include "trainkit/app/placement.h"
#include "trainkit/core/format.h"
#include "trainkit/core/status.h"
#include "transformer/corpus.h"
#include "transformer/session.h"
#include "transformer/text_dataset.h"

namespace trainkit::transformer {
namespace {

/// Sums over the predicted tokens of a text.
struct Score {
  double loss = 0;
  int64_t tokens = 0;
  int64_t bytes = 0;
};

/// Returns the bytes of each token; 0 for the end of a document, which is no text.
std::vector<int64_t> token_sizes(const Tokenizer& tokenizer) {
  std::vector<int64_t> sizes;
  for (int64_t id = 0; id < tokenizer.vocab_size(); ++id) {
    sizes.push_back(static_cast<int64_t>(tokenizer.token_bytes(static_cast<TokenId>(id)).size()));
  }
  if (const auto end = document_end_token(tokenizer)) sizes[*end] = 0;
  return sizes;
}

/// Scores all tokens of each text but the first. It sums like the trainer's evaluation, so the validation text gives
/// the validation loss.
absl::StatusOr<Score> score_texts(const TrainedRun& run, const TransformerOptions& options, const Corpus& corpus) {
  const auto end_token = document_end_token(*corpus.tokenizer);
  const int64_t document_end = options.pack_documents && end_token ? int64_t{*end_token} : -1;
  std::vector<std::shared_ptr<const TokenWindows>> texts;
  for (const TokenizedText& text : corpus.texts) {
    texts.push_back(std::make_shared<const TokenWindows>(
        text.tokens,
        TokenWindowsOptions{.block_size = options.model.block_size, .whole = true, .document_end = document_end}));
  }
  // The run's own --eval_max_rows shortens its evaluations during training.
  const bool shortens = run.parser.source("eval_max_rows").starts_with("--");
  const ValidationRows windows = validation_rows(texts, shortens ? options.eval_max_rows : 0);
  const int64_t vocab_size = corpus.tokenizer->vocab_size();
  TRAINKIT_RETURN_IF_ERROR(validate(model_config(options, vocab_size)));
  TRAINKIT_ASSIGN_OR_RETURN(const Predictor predictor,
                            run.load([&] { return create_model(options, vocab_size); }, "windows"));
  const std::vector<int64_t> sizes = token_sizes(*corpus.tokenizer);
  Score score;
  const auto forward = [](TransformerImpl& model, const Batch& rows) { return loss_of_windows(model, rows); };
  const auto take = [&](const Batch& rows, const at::Tensor& loss) {
    const int64_t targets = windows.targets(rows.row_indices());
    if (targets > 0) score.loss += loss.item<double>() * static_cast<double>(targets);
    score.tokens += targets;
    const at::Tensor predicted = rows["y"].cpu().contiguous();
    for (const int64_t token : std::span(predicted.const_data_ptr<int64_t>(), static_cast<size_t>(predicted.numel()))) {
      if (token != kIgnoreIndex) score.bytes += sizes[static_cast<size_t>(token)];
    }
    return absl::OkStatus();
  };
  TRAINKIT_RETURN_IF_ERROR(predictor.run(windows.dataset, forward, take).status());
  return score;
}

/// Returns the texts to evaluate: --input given now, else --validation_input given now or of the run.
absl::StatusOr<std::vector<TextInput>> texts_to_evaluate(const TrainedRun& run, const TransformerOptions& options) {
  // The run's own --input is the training text.
  if (run.parser.source("input").starts_with("--")) return corpus_options(options, "").inputs;
  if (const std::string& text = options.corpus.validation_input; !text.empty()) {
    return std::vector<TextInput>{{.path = text}};
  }
  return bad_word("--input", "not given", "a text to evaluate",
                  "a run with --validation_input evaluates that text without --input");
}

absl::StatusOr<int> evaluate_text(const TrainedRun& run, const TransformerOptions& options) {
  TRAINKIT_ASSIGN_OR_RETURN(const auto folder, TemporaryFolder::create());
  CorpusOptions text = corpus_options(options, folder.path());
  TRAINKIT_ASSIGN_OR_RETURN(text.inputs, texts_to_evaluate(run, options));
  text.validation_input.clear();
  TRAINKIT_ASSIGN_OR_RETURN(text.saved_tokenizer, run.file(kTokenizerFile, "its tokenizer"));
  TRAINKIT_ASSIGN_OR_RETURN(const Corpus corpus, tokenize_corpus(text, /*least_tokens=*/2, tokenize_progress()));
  TRAINKIT_ASSIGN_OR_RETURN(const Score score, score_texts(run, options, corpus));
  const double loss = score.loss / static_cast<double>(score.tokens);
  const double bits = score.loss / std::numbers::ln2 / static_cast<double>(score.bytes);
  for (const TokenizedText& each : corpus.texts) {
    print_line(
        fmt::format("text           {}: {}{}", each.source, format_size(each.bytes), describe_findings(each, options)));
  }
  print_line(fmt::format("tokens         {} predicted", score.tokens));
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
            .flags = {"input", "validation_input", "eval_max_rows", "jsonl_field", "normalize_newlines",
                      "allow_special_tokens"},
            .body = [&options](TrainedRun& run) { return evaluate_text(run, options); }});
}

}  // namespace trainkit::transformer
