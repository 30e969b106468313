#pragma once
/// The text, tokenizer and outputs of a Transformer run.

#include <absl/status/statusor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainkit/app/run_options.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/state_dict.h"
#include "trainkit/nn/transformer.h"
#include "trainkit/report/summary.h"
#include "trainkit/train/step_memory.h"
#include "trainkit/train/trainer.h"
#include "transformer/corpus.h"
#include "transformer/mixture.h"
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
  /// Windows of the training parts.
  std::shared_ptr<const Dataset> training_set() const;
  /// The mixture of the training parts by weight; nullopt without weights, or with a single text.
  const std::optional<Mixture>& mixture() const { return mixture_; }
  /// Windows of --validation_input, or of the end of each input.
  ValidationRows validation_rows() const;
  /// Share of the training positions that have a target: 1 without packed documents.
  double target_share() const;
  /// Returns the facts "text" and "validation" of the run.
  RunFacts describe() const;
  /// Returns the model's shape, which each checkpoint stores so that sampling needs no flags.
  StateDict model_state() const;
  /// Saves the tokenizer as `<output_dir>/tokenizer.json`.
  absl::Status save() const;
  /// Returns text that `model` generates without a prompt.
  absl::StatusOr<std::string> sample(Transformer& model, int64_t most_tokens) const;

 private:
  Session(const RunOptions& run, const TransformerOptions& options, std::optional<TemporaryFolder> temporary,
          Corpus corpus)
      : run_(run), options_(options), temporary_(std::move(temporary)), corpus_(std::move(corpus)) {
    mix();
  }
  std::shared_ptr<const TokenWindows> windows(const TokenizedText& text, TokenWindowsOptions part) const;
  std::vector<std::shared_ptr<const Dataset>> training_texts() const;
  int64_t document_end() const;
  void mix();

  RunOptions run_;
  TransformerOptions options_;
  std::optional<TemporaryFolder> temporary_;
  Corpus corpus_;
  std::optional<Mixture> mixture_;
};

/// Describes what reading a text has found, for the end of a line: "; 12 CRLF line ends (...)". Empty: nothing.
std::string describe_findings(const TokenizedText& text, const TransformerOptions& options);

/// Name of the tokenizer's file in a run's folder.
inline constexpr char kTokenizerFile[] = "tokenizer.json";

/// Reports progress on stderr in steps of 10 %, for texts above 16 MiB.
TokenizeProgress tokenize_progress();

/// Creates the model of the flags, with weights from LibTorch's default generator.
Transformer create_model(const TransformerOptions& options, int64_t vocab_size);

/// Returns narrower, shallower and checkpointed models, each with the flag that selects it.
std::vector<StepRecipe::Choice> smaller_models(const TransformerOptions& options, int64_t vocab_size);

/// Returns the mean cross-entropy of the windows' targets, weighted by their number. With packed documents some
/// positions have no target: `target_share` is the share of those that have one, in the whole text. The sum of a batch
/// is divided by the targets that its size promises, so that each target of a step has the same weight, for any
/// micro-batch and any number of devices, and nothing is read back from the device.
LossFunction text_loss(double target_share);

/// Returns the mean loss of a batch of TokenWindows.
at::Tensor loss_of_windows(TransformerImpl& model, const Batch& batch);

/// Describes the memory of a GPU, with the preset suggested for it: "20 GiB free of 24 GiB; suggested: ...".
std::string describe_memory(at::Device device);

/// Implements --sample and --prompt_file: continues the text with the weights that find_weights finds in --output_dir,
/// the best ones where the run kept them, or in --resume. Prints the text, and the weights on stderr.
absl::StatusOr<int> sample_from_run(const RunOptions& run, const TransformerOptions& options, at::Device device);

/// Implements --make_demo_data: writes `<folder>/demo.txt`.
absl::StatusOr<int> write_demo_data(const std::string& folder);

}  // namespace trainkit::transformer
