#pragma once
/// The text, tokenizer and outputs of a Transformer run.

#include <absl/status/statusor.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trainkit/app/run_options.h"
#include "trainkit/core/state_dict.h"
#include "trainkit/logging/summary.h"
#include "trainkit/nn/transformer.h"
#include "trainkit/train/step_memory.h"
#include "trainkit/train/trainer.h"
#include "transformer/corpus.h"
#include "transformer/options.h"
#include "transformer/text_dataset.h"

namespace trainkit::transformer {

/// The tokenized corpus of a run and its tokenizer. A resumed run uses the saved tokenizer. Tokenizing reports progress
/// on stderr.
class Session {
 public:
  /// Errors: those of prepare_corpus, and of resolve_checkpoint with --resume. Caches tokens in --data_dir or in the
  /// run's folder; a dry run uses a temporary folder that is deleted with the Session.
  static absl::StatusOr<Session> open(const RunOptions& run, const TransformerOptions& options);

  const Corpus& corpus() const { return corpus_; }
  /// Windows of the training part and of the validation part.
  std::shared_ptr<const TokenWindows> training_set() const;
  std::shared_ptr<const TokenWindows> validation_set() const;
  /// Returns the fact "text" of the run.
  RunFacts describe() const;
  /// Returns the model's shape, which each checkpoint stores so that sampling needs no flags.
  StateDict model_state() const;
  /// Saves the tokenizer as `<output_dir>/tokenizer.json`.
  absl::Status save() const;
  /// Returns text that `model` generates without a prompt.
  absl::StatusOr<std::string> sample(Transformer& model) const;

 private:
  Session(const RunOptions& run, const TransformerOptions& options, std::shared_ptr<const std::string> temporary,
          Corpus corpus)
      : run_(run), options_(options), temporary_(std::move(temporary)), corpus_(std::move(corpus)) {}
  RunOptions run_;
  TransformerOptions options_;
  std::shared_ptr<const std::string> temporary_;
  Corpus corpus_;
};

/// Name of the tokenizer's file in a run's folder.
inline constexpr char kTokenizerFile[] = "tokenizer.json";

/// Creates a folder that is deleted with the last copy of the pointer. Error: storage.temporary (exit code 6).
absl::StatusOr<std::shared_ptr<const std::string>> temporary_folder();

/// Reports progress on stderr in steps of 10 %, for texts above 16 MiB.
TokenizeProgress tokenize_progress();

/// Creates the model of the flags, with weights from LibTorch's default generator.
Transformer create_model(const TransformerOptions& options, int64_t vocab_size);

/// Returns narrower, shallower and checkpointed models, each with the flag that selects it.
std::vector<StepRecipe::Choice> smaller_models(const TransformerOptions& options, int64_t vocab_size);

/// Returns the mean cross-entropy of the windows' targets, weighted by their number.
LossFunction text_loss();

/// Describes the memory of a GPU, with the preset suggested for it: "20 GiB free of 24 GiB; suggested: ...".
std::string describe_memory(at::Device device);

/// Implements --sample and --prompt_file: continues the text with the latest checkpoint of --output_dir, or with that
/// of --resume. Prints the text.
absl::StatusOr<int> sample_from_run(const RunOptions& run, const TransformerOptions& options, at::Device device);

/// Implements --make_demo_data: writes `<folder>/demo.txt`.
absl::StatusOr<int> write_demo_data(const std::string& folder);

}  // namespace trainkit::transformer
