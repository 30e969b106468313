#pragma once
/// What stands around the training of a Transformer: its text, what is kept beside its weights, and what it writes.

#include <absl/status/statusor.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trainkit/app/run_options.h"
#include "trainkit/core/state_dict.h"
#include "trainkit/nn/transformer.h"
#include "trainkit/train/step_memory.h"
#include "trainkit/train/trainer.h"
#include "transformer/corpus.h"
#include "transformer/options.h"
#include "transformer/text_dataset.h"

namespace trainkit::transformer {

/// The corpus of a run, tokenized (with progress on the screen), and its tokenizer, which a resumed run takes over.
class Session {
 public:
  /// Errors are those of prepare_corpus, and of resolve_checkpoint with --resume. Tokens are cached in --data_dir, or
  /// in the run's folder; a dry run keeps them in a temporary folder that goes with the Session.
  static absl::StatusOr<Session> open(const RunOptions& run, const TransformerOptions& options);

  const Corpus& corpus() const { return corpus_; }
  /// The windows that a run trains on, and those of the rest of the text.
  std::shared_ptr<const TokenWindows> training_set() const;
  std::shared_ptr<const TokenWindows> validation_set() const;
  /// "text ..." for the first lines of a run, with a line end.
  std::string describe() const;
  /// The model's shape, kept in each checkpoint so that sampling needs no flags.
  StateDict model_state() const;
  /// Keeps the tokenizer as `<output_dir>/tokenizer.json`.
  absl::Status save() const;
  /// Text that `model` writes from nothing.
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

/// The model of the flags, with weights from LibTorch's default generator.
Transformer create_model(const TransformerOptions& options, int64_t vocab_size);

/// Narrower, shallower and checkpointed models, by the flags that choose them.
std::vector<StepRecipe::Choice> smaller_models(const TransformerOptions& options, int64_t vocab_size);

/// Mean cross-entropy of the windows' targets, weighed by their number.
LossFunction text_loss();

/// "memory ..." of a GPU, and which preset suits it, for whoever has not chosen one.
std::string describe_memory(at::Device device);

/// --sample: continues the text with the latest checkpoint of --output_dir, or that of --resume. Prints the text.
absl::StatusOr<int> sample_from_run(const RunOptions& run, const TransformerOptions& options, at::Device device);

/// --make_demo_data: writes `<folder>/demo.txt`.
absl::StatusOr<int> write_demo_data(const std::string& folder);

}  // namespace trainkit::transformer
