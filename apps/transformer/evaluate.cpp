#include "transformer/evaluate.h"

#include <fmt/format.h>

#include "trainkit/app/placement.h"
#include "trainkit/core/format.h"
#include "trainkit/core/status.h"
#include "trainkit/tasks/language.h"
#include "transformer/corpus.h"
#include "transformer/model.h"

namespace trainkit::transformer {
namespace {

/// Scores all tokens of each text but the first. It sums like the trainer's evaluation, so the validation text gives
/// the validation loss.
absl::StatusOr<Metrics> score_texts(const TrainedRun& run, const TransformerOptions& options, const Corpus& corpus) {
  TokenWindowsOptions how{.block_size = options.model.block_size, .whole = true};
  if (const auto end = document_end_token(*corpus.tokenizer); end && options.pack_documents) how.document_end = *end;
  // The run's own --eval_max_rows shortens its evaluations during training.
  const bool shortens = run.parser.source("eval_max_rows").starts_with("--");
  const int64_t vocab_size = corpus.tokenizer->vocab_size();
  TRAINKIT_RETURN_IF_ERROR(validate(model_config(options, vocab_size)));
  TRAINKIT_ASSIGN_OR_RETURN(const Predictor predictor,
                            run.load([&] { return create_model(options, vocab_size); }, "windows"));
  const auto score = language_score(corpus.tokenizer);
  const auto take = [&](const Batch& rows, const at::Tensor& loss) {
    score->update(loss, rows);
    return absl::OkStatus();
  };
  const ValidationRows rows = validation_rows(windows_of(corpus.texts, how), shortens ? options.eval_max_rows : 0);
  TRAINKIT_RETURN_IF_ERROR(predictor.run(rows.dataset, loss_of_windows, take).status());
  return score->result();
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
  TRAINKIT_ASSIGN_OR_RETURN(const Metrics score, score_texts(run, options, corpus));
  for (const TokenizedText& each : corpus.texts) {
    print_line(fmt::format("text           {}: {}{}", each.source, format_size(each.bytes),
                           describe_findings(each, text.text)));
  }
  print_line(fmt::format("tokens         {:.0f} predicted", score.at("tokens")));
  print_line(fmt::format("loss           {:.6f}", score.at("loss")));
  print_line(fmt::format("perplexity     {:.4f}", score.at("perplexity")));
  print_line(fmt::format("bits per byte  {:.6f}", score.at("bits_per_byte")));
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
