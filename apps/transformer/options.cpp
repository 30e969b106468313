#include "transformer/options.h"

#include <fmt/format.h>

namespace trainkit::transformer {
namespace {

constexpr char kEvaluateMode[] = "evaluate";

OptionNeed evaluations() { return {"eval_every", {"0"}, /*excludes=*/true}; }

void add_model_flags(ConfigParser& parser, TransformerOptions& options) {
  const OptionGroup add(parser, "Model", {modes::kTrain});
  constexpr double kMaxWidth = 1 << 20;
  add("hidden_dim", &options.model.hidden_dim, {.help = "Width of the model.", .min = 1, .max = kMaxWidth});
  add("n_layers", &options.model.n_layers, {.help = "Transformer blocks.", .min = 1, .max = 1024});
  add("n_heads", &options.model.n_heads,
      {.help = "Attention heads; must divide hidden_dim. 0: the largest divisor that is at most 8.",
       .min = 0,
       .max = kMaxWidth});
  add("block_size", &options.model.block_size, {.help = "Context length in tokens.", .min = 1, .max = kMaxWidth});
  add("dropout", &options.model.dropout, {.help = "Dropout probability, below 1.", .min = 0, .max = 0.999});
  add("bias", &options.model.bias, {.help = "Biases in linear layers and layer norms."});
  add("gradient_checkpointing", &options.gradient_checkpointing,
      {.help = "Recompute each block in backward: less memory, a third more time."});
  add("checkpoint_segments", &options.checkpoint_segments,
      {.help = "Split the blocks into N segments and recompute all but the last in backward. 1 keeps "
               "everything; auto uses the fewest for which the batch is predicted to fit into memory.",
       .min = 1,
       .max = 1024});
}

void add_text_flags(ConfigParser& parser, TransformerOptions& options) {
  const OptionGroup add(parser, "Text", {modes::kTrain, kEvaluateMode});
  add("input", &options.input,
      {.help = "Text files, .jsonl files or folders of them. Several are mixed by weight (a.txt:0.7 b.jsonl:0.3), or "
               "joined without weights. Default: the licences in /usr/share/common-licenses.",
       .path = PathKind::kInput,
       .metavar = "PATH[:WEIGHT] [...]"});
  add("validation_input", &options.corpus.validation_input,
      {.help = "Text for validation. Unset: the last 10 % of each input.",
       .path = PathKind::kInput});  // evaluate reads it too, also that of a run without evaluations
  add("eval_max_rows", &options.eval_max_rows,
      {.help = "Evaluate N windows of the validation text, evenly spaced; 0: all.", .min = 0});
  add("jsonl_field", &options.corpus.text.jsonl_field,
      {.help = "Field of each line of a .jsonl file that has the text."});
  add("normalize_newlines", &options.corpus.text.normalize_newlines, {.help = "Convert CRLF line ends to LF."});
  add("allow_special_tokens", &options.corpus.allow_special_tokens,
      {.help = "Parse <|endoftext|> in a text as the token that ends a document; else it is plain text."});
  add("pack_documents", &options.pack_documents,
      {.help =
           "Attention and positions of a document do not cross its borders. Documents are the lines of .jsonl files, "
           "the files of a folder, and texts that <|endoftext|> separates (--allow_special_tokens)."});
  add("tokenizer", &options.corpus.tokenizer,
      {.help = "Tokenizer: characters, or GPT-2's byte pairs.", .choices = {"char", "gpt2"}, .modes = {modes::kTrain}});
  const OptionNeed gpt2{"tokenizer", {"gpt2"}};
  add("vocab", &options.corpus.vocab,
      {.help = "GPT-2's encoder.json, for --tokenizer gpt2.",
       .path = PathKind::kInput,
       .modes = {modes::kTrain},
       .needs = {gpt2}});
  add("merges", &options.corpus.merges,
      {.help = "GPT-2's vocab.bpe, for --tokenizer gpt2.",
       .path = PathKind::kInput,
       .modes = {modes::kTrain},
       .needs = {gpt2}});
}

void add_optimizer_flags(ConfigParser& parser, TransformerOptions& options) {
  const OptionGroup add(parser, "Optimization", {modes::kTrain});
  add("optimizer", &options.optimizer,
      {.help = "Optimizer: AdamW; or Muon for the matrices of the blocks and AdamW for embeddings, norms, biases "
               "and the output layer.",
       .choices = {"adamw", "muon"}});
  add("beta1", &options.beta1, {.help = "AdamW's decay rate of the mean gradient.", .min = 0, .max = 0.999999});
  add("beta2", &options.beta2, {.help = "AdamW's decay rate of the mean squared gradient.", .min = 0, .max = 0.999999});
  add("final_lr_share", &options.final_lr_share,
      {.help = "Learning rate at the end of a cosine or linear schedule, as a share of --lr.",
       .min = 0,
       .max = 1,
       .needs = {{"scheduler", {"linear", "cosine", "cosine_restarts"}}}});
}

void add_sampling_flags(ConfigParser& parser, TransformerOptions& options) {
  const OptionGroup add(parser, "Sampling", {modes::kTrain, kSampleMode});
  add("sample", &options.sample,
      {.help = "Continue this text instead of training. Uses the weights of --output_dir, the best ones in validation, "
               "or those of a checkpoint (--resume).",
       .modes = {kSampleMode}});
  add("prompt_file", &options.prompt_file,
      {.help = "Continue the text in this file, as --sample does.",
       .path = PathKind::kInput,
       .flag_only = true,
       .modes = {kSampleMode}});
  add("eval_sample", &options.eval_sample,
      {.help = "Sample a short text at each evaluation, for the report. It does not change the training.",
       .modes = {modes::kTrain},
       .needs = {evaluations()}});
  add("sample_tokens", &options.sampling.max_tokens, {.help = "Tokens to generate.", .min = 1, .max = 1 << 20});
  add("temperature", &options.sampling.temperature,
      {.help = "Sampling temperature. Lower is more deterministic; 0 takes the most probable token.",
       .min = 0,
       .max = 100});
  add("top_k", &options.sampling.top_k,
      {.help = "Sample from the k most probable tokens; 0: from all.", .min = 0, .max = 1 << 24});
}

/// Checks the weights of --input.
absl::Status check_inputs(const ConfigParser& parser, const TransformerOptions& options) {
  size_t weighted = 0;
  for (const std::string& text : options.input) {
    const auto input = parse_input(text);
    if (!input) return parser.invalid("input", "the weight of " + text, "a number > 0 after the last colon");
    weighted += input->weight > 0;
  }
  if (weighted == 0 || weighted == options.input.size()) return absl::OkStatus();
  return parser.invalid("input", "only some inputs have a weight", "PATH:WEIGHT for each of them, or for none");
}

}  // namespace

void set_run_defaults(RunOptions& run) {
  run.output_dir = "runs/transformer";
  run.epochs = 100;
  run.batch_size = {4};
  run.grad_accum_steps = 8;
  run.lr = 1e-3;
  run.weight_decay = 0.1;
  run.grad_clip = 1.0;
  run.scheduler = "cosine";
  run.warmup_steps = 100;
  run.cuda_graph = CudaGraph::kAuto;
}

void add_transformer_flags(ConfigParser& parser, TransformerOptions& options) {
  add_model_flags(parser, options);
  add_text_flags(parser, options);
  add_optimizer_flags(parser, options);
  add_sampling_flags(parser, options);
  parser.set_modes("seed", {modes::kTrain, kSampleMode});  // the demonstration text is always the same
  parser.set_modes("output_dir", {modes::kTrain, kSampleMode});
  parser.set_modes("resume", {modes::kTrain, kSampleMode});
  parser.set_modes("device", {modes::kTrain, modes::kDevice, kSampleMode});
  parser.fix({"hidden_dim", "n_layers", "n_heads", "block_size", "bias", "tokenizer", "allow_special_tokens",
              "pack_documents", "optimizer", "beta1", "beta2"});
  parser.add_preset("small_gpu", {{"batch_size", "8"}, {"hidden_dim", "128"}, {"n_layers", "2"}},
                    "for a GPU with less than 10 GB");
  parser.add_preset("large_gpu", {{"batch_size", "32"}, {"hidden_dim", "512"}, {"n_layers", "6"}},
                    "for a GPU with more than 20 GB");
  parser.add_preset("shakespeare_char_cpu",
                    {{"batch_size", "12"},
                     {"grad_accum_steps", "1"},
                     {"hidden_dim", "128"},
                     {"n_layers", "4"},
                     {"n_heads", "4"},
                     {"block_size", "64"},
                     {"dropout", "0"},
                     {"bias", "false"},
                     {"tokenizer", "char"},
                     {"max_steps", "2000"},
                     {"lr", "1e-3"},
                     {"final_lr_share", "0.1"},
                     {"scheduler", "cosine"},
                     {"warmup_steps", "100"},
                     {"beta1", "0.9"},
                     {"beta2", "0.99"},
                     {"weight_decay", "0.1"},
                     {"grad_clip", "1"},
                     {"mixed_precision", "false"}},
                    "nanoGPT's recipe for a CPU; use tiny Shakespeare as --input");
}

Settings device_defaults(bool cuda) {
  if (cuda) {
    return {{"batch_size", "16"},
            {"hidden_dim", "256"},
            {"n_layers", "3"},
            {"grad_accum_steps", "2"},
            {"mixed_precision", "true"}};
  }
  return {{"batch_size", "4"},
          {"hidden_dim", "512"},
          {"n_layers", "6"},
          {"grad_accum_steps", "8"},
          {"mixed_precision", "false"}};
}

std::string suggested_preset(int64_t device_bytes) {
  constexpr int64_t kGigabyte = 1'000'000'000;
  if (device_bytes < 10 * kGigabyte) return "small_gpu";
  if (device_bytes > 20 * kGigabyte) return "large_gpu";
  return {};
}

absl::Status check_transformer_options(const ConfigParser& parser, const TransformerOptions& options) {
  if (options.model.n_heads > 0 && options.model.hidden_dim % options.model.n_heads != 0) {
    return parser.invalid("n_heads", "does not divide the width",
                          fmt::format("a divisor of --hidden-dim {}", options.model.hidden_dim));
  }
  const int64_t segments = options.checkpoint_segments.value.value_or(1);
  if (segments > options.model.n_layers) {
    return parser.invalid("checkpoint_segments", "more segments than blocks",
                          fmt::format("at most --n-layers {}", options.model.n_layers));
  }
  if (options.gradient_checkpointing && options.checkpoint_segments != IntOrAuto{1}) {
    return parser.invalid("checkpoint_segments", "--gradient-checkpointing already recomputes each block",
                          "one of the two");
  }
  if (options.corpus.tokenizer == "gpt2" && (options.corpus.vocab.empty() || options.corpus.merges.empty())) {
    return parser.invalid("tokenizer", "gpt2 requires its files", "--vocab encoder.json --merges vocab.bpe");
  }
  if (!options.sample.empty() && !options.prompt_file.empty()) {
    return parser.invalid("prompt_file", "conflicts with --sample", "one of the two");
  }
  return check_inputs(parser, options);
}

TransformerConfig model_config(const TransformerOptions& options, int64_t vocab_size) {
  TransformerConfig config = options.model;
  config.vocab_size = vocab_size;
  return config;
}

CorpusOptions corpus_options(const TransformerOptions& options, const std::string& cache_dir) {
  CorpusOptions corpus = options.corpus;
  corpus.text.jsonl_field_flag = "--jsonl_field";
  corpus.text.files_are_documents = options.pack_documents;
  corpus.cache_dir = cache_dir;
  corpus.block_size = options.model.block_size;
  for (const std::string& text : options.input) corpus.inputs.push_back(parse_input(text).value_or(TextInput{text}));
  return corpus;
}

}  // namespace trainkit::transformer
