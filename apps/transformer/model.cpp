#include "transformer/model.h"

#include <fmt/format.h>

#include <cstdio>

#include "trainkit/app/predictor.h"
#include "trainkit/app/run_folder.h"
#include "trainkit/core/status.h"
#include "trainkit/tasks/language.h"

namespace trainkit::transformer {
namespace {

absl::StatusOr<TransformerConfig> config_from(const StateDict& state) {
  TransformerConfig config;
  TRAINKIT_ASSIGN_OR_RETURN(config.vocab_size, get_state<int64_t>(state, "vocab_size"));
  TRAINKIT_ASSIGN_OR_RETURN(config.block_size, get_state<int64_t>(state, "block_size"));
  TRAINKIT_ASSIGN_OR_RETURN(config.n_layers, get_state<int64_t>(state, "n_layers"));
  TRAINKIT_ASSIGN_OR_RETURN(config.n_heads, get_state<int64_t>(state, "n_heads"));
  TRAINKIT_ASSIGN_OR_RETURN(config.hidden_dim, get_state<int64_t>(state, "hidden_dim"));
  TRAINKIT_ASSIGN_OR_RETURN(config.bias, get_state<bool>(state, "bias"));
  TRAINKIT_ASSIGN_OR_RETURN(config.tied_head, get_state<bool>(state, "tied_head"));
  TRAINKIT_RETURN_IF_ERROR(validate(config));
  return config;
}

/// Returns the prompt of --sample or --prompt_file.
absl::StatusOr<std::string> prompt_of(const TransformerOptions& options) {
  if (options.prompt_file.empty()) return options.sample;
  TRAINKIT_ASSIGN_OR_RETURN(const auto file, MappedFile::open(options.prompt_file));
  std::string prompt(file->text());
  TRAINKIT_RETURN_IF_ERROR(file->check());
  TRAINKIT_RETURN_IF_ERROR(add_file_to_error(check_text(prompt), options.prompt_file));
  return prompt;
}

}  // namespace

Transformer create_model(const TransformerOptions& options, int64_t vocab_size) {
  Transformer model(model_config(options, vocab_size));
  model->set_gradient_checkpointing(options.gradient_checkpointing);
  model->set_checkpoint_segments(options.checkpoint_segments.value.value_or(1));
  return model;
}

std::vector<StepRecipe::Choice> smaller_models(const TransformerOptions& options, int64_t vocab_size) {
  std::vector<StepRecipe::Choice> models;
  const auto add = [&](const std::string& flag, const TransformerOptions& other) {
    models.emplace_back(flag, [other, vocab_size](StepRecipe& recipe) {
      recipe.make_model = [other, vocab_size] { return create_model(other, vocab_size).ptr(); };
    });
  };
  TransformerOptions narrow = options, shallow = options, checkpointed = options;
  const int64_t width = narrow.model.hidden_dim /= 2, layers = shallow.model.n_layers /= 2;
  const int64_t heads = options.model.n_heads;
  if (width > 0 && (heads == 0 || width % heads == 0)) add(fmt::format("--hidden_dim {}", width), narrow);
  if (layers > 0) add(fmt::format("--n_layers {}", layers), shallow);
  checkpointed.gradient_checkpointing = true;
  if (!options.gradient_checkpointing) add("--gradient_checkpointing", checkpointed);
  return models;
}

at::Tensor loss_of_windows(TransformerImpl& model, const Batch& batch) {
  return model.loss(batch["x"], batch["y"], batch.contains("positions") ? batch["positions"] : at::Tensor());
}

StateDict model_state(const TransformerOptions& options, int64_t vocab_size) {
  const TransformerConfig config = model_config(options, vocab_size);
  const int64_t heads = config.n_heads == 0 ? default_n_heads(config.hidden_dim) : config.n_heads;
  return {{"vocab_size", config.vocab_size}, {"block_size", config.block_size},
          {"n_layers", config.n_layers},     {"n_heads", heads},
          {"hidden_dim", config.hidden_dim}, {"bias", config.bias},
          {"tied_head", config.tied_head}};
}

absl::StatusOr<int> sample_from_run(const RunOptions& run, const TransformerOptions& options, at::Device device) {
  TRAINKIT_ASSIGN_OR_RETURN(const std::string prompt, prompt_of(options));
  TRAINKIT_ASSIGN_OR_RETURN(const CheckpointPath checkpoint, run.resume.empty()
                                                                 ? resolve_checkpoint("latest", run.output_dir)
                                                                 : resumed_checkpoint(run));
  TRAINKIT_ASSIGN_OR_RETURN(const StateDict state, load_checkpoint_state(checkpoint));
  TRAINKIT_ASSIGN_OR_RETURN(const TransformerConfig config, config_from(sub_state(state, "config")));
  TRAINKIT_ASSIGN_OR_RETURN(const auto tokenizer, load_tokenizer(checkpoint.run_folder() + "/" + kTokenizerFile));
  const bool names_run = run.resume.empty() || run.resume == "latest";
  TRAINKIT_ASSIGN_OR_RETURN(const Predictor predictor,
                            Predictor::open(names_run ? run.output_dir : run.resume,
                                            [&] { return Transformer(config); }, {.devices = {device}}));
  std::fputs((predictor.weights().describe() + "\n").c_str(), stderr);
  Transformer model(std::dynamic_pointer_cast<TransformerImpl>(predictor.model().shared_from_this()));
  GenerateOptions sampling = options.sampling;
  sampling.seed = run.seed;
  const auto text = sample_text(model, *tokenizer, prompt, sampling);
  if (!text.ok()) return add_file_to_error(text.status(), options.prompt_file);
  std::fputs((*text + "\n").c_str(), stdout);
  return 0;
}

}  // namespace trainkit::transformer
