#pragma once
/// Language: the next token of each position is the target.

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "trainkit/nn/transformer.h"
#include "trainkit/tasks/task.h"
#include "trainkit/text/tokenizer.h"

namespace trainkit {

struct LanguageOptions {
  /// Fields of the batches, (B, T) int64: tokens, and the next token of each, kIgnoreIndex where none counts
  /// (TokenWindows).
  std::string input_field = "x";
  std::string target_field = "y";
  /// Number of targets of a row of the validation set, which is the weight of its loss: ValidationRows::targets_of.
  /// Null: every position has one.
  std::function<int64_t(int64_t row)> targets_of = {};
  /// Share of the positions of the training set that have a target. Below 1, the loss of a batch is the sum over its
  /// targets divided by the number that its size promises. So each target of a step has the same weight, for any
  /// micro-batch and any number of devices, and nothing is read back from the device.
  double target_share = 1;

  /// For scores per character and per byte, and for texts. nullptr: neither.
  std::shared_ptr<const Tokenizer> tokenizer = nullptr;
  /// Mean number of characters per token of the validation text. 0: counted in the targets of each evaluation.
  double characters_per_token = 0;
  /// Texts for the report, which the model generates without a prompt: at the end of a run, with max_tokens tokens; 0:
  /// no texts. They change no training.
  GenerateOptions sampling = {};
  /// Tokens of the text at an evaluation, at most max_tokens; 0: none.
  int64_t evaluation_tokens = 80;
};

namespace detail {
std::shared_ptr<Task> make_language(ModelOutputs outputs, LanguageOptions options);
}

/// Makes the task of a language model. Evaluations have "perplexity", e^loss, and with a tokenizer
/// "bits_per_character". A test has "bits_per_byte" too. Ends of documents are neither characters nor bytes. The report
/// shows the latest 20 texts, and samples.json keeps the latest 100.
///
///   task.task = language([](Net& net, const Batch& batch) { return net->forward(batch["x"]); },
///                        {.targets_of = validation.targets_of, .tokenizer = tokenizer});
///
/// @param outputs returns logits (B, T, V), or the mean loss of the targets, a scalar, from the user's own model type.
/// Texts need a Transformer, or logits that follow from input_field alone.
template <class F>
std::shared_ptr<Task> language(F outputs, LanguageOptions options) {
  return detail::make_language(any_model(std::move(outputs)), std::move(options));
}

/// Returns a score of mean losses, the scalar outputs of a model: "loss" in nats per target, "perplexity", "tokens",
/// the number of targets, and with a tokenizer "bits_per_character" and "bits_per_byte".
std::unique_ptr<Score> language_score(const std::shared_ptr<const Tokenizer>& tokenizer,
                                      const std::string& target_field = "y");

/// Returns `prompt` and its continuation as printable UTF-8. An empty prompt is replaced by the token that
/// ends a document, else by a line end, else by the first token of the vocabulary. Ends of documents are shown as
/// "<|endoftext|>". Errors of Tokenizer::encode.
absl::StatusOr<std::string> sample_text(Transformer& model, const Tokenizer& tokenizer, const std::string& prompt,
                                        const GenerateOptions& options);

}  // namespace trainkit
