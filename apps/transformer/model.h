#pragma once
/// The model of the flags, and texts of a trained one.

#include <absl/status/statusor.h>

#include <vector>

#include "trainkit/app/run_options.h"
#include "trainkit/core/state_dict.h"
#include "trainkit/nn/transformer.h"
#include "trainkit/train/step_memory.h"
#include "transformer/options.h"

namespace trainkit::transformer {

/// Creates the model of the flags, with weights from LibTorch's default generator.
Transformer create_model(const TransformerOptions& options, int64_t vocab_size);

/// Returns narrower, shallower and checkpointed models, each with the flag that selects it.
std::vector<StepRecipe::Choice> smaller_models(const TransformerOptions& options, int64_t vocab_size);

/// Returns the mean loss of a batch of TokenWindows.
at::Tensor loss_of_windows(TransformerImpl& model, const Batch& batch);

/// Returns the model's shape, which each checkpoint stores so that sampling needs no flags.
StateDict model_state(const TransformerOptions& options, int64_t vocab_size);

/// Implements --sample and --prompt_file: continues the text with the weights that find_weights finds in --output_dir,
/// the best ones where the run kept them, or in --resume. Prints the text, and the weights on stderr.
absl::StatusOr<int> sample_from_run(const RunOptions& run, const TransformerOptions& options, at::Device device);

}  // namespace trainkit::transformer
