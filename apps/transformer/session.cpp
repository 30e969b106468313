#include "transformer/session.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/where.h>
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <set>

#include "trainkit/app/app.h"
#include "trainkit/core/error.h"
#include "trainkit/core/format.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/data/adapters.h"
#include "trainkit/io/folder_files.h"
#include "trainkit/io/mapped_file.h"
#include "trainkit/train/checkpoint.h"
#include "transformer/demo_text.h"
#include "transformer/sampling.h"

namespace trainkit::transformer {
namespace {

StateDict state_of(const TransformerConfig& config) {
  return {{"vocab_size", config.vocab_size}, {"block_size", config.block_size}, {"n_layers", config.n_layers},
          {"n_heads", config.n_heads},       {"hidden_dim", config.hidden_dim}, {"bias", config.bias},
          {"tied_head", config.tied_head}};
}

absl::StatusOr<TransformerConfig> config_from(const StateDict& state) {
  TransformerConfig config;
  TRAINKIT_ASSIGN_OR_RETURN(config.vocab_size, get_state<int64_t>(state, "vocab_size"));
  TRAINKIT_ASSIGN_OR_RETURN(config.block_size, get_state<int64_t>(state, "block_size"));
  TRAINKIT_ASSIGN_OR_RETURN(config.n_layers, get_state<int64_t>(state, "n_layers"));
  TRAINKIT_ASSIGN_OR_RETURN(config.n_heads, get_state<int64_t>(state, "n_heads"));
  TRAINKIT_ASSIGN_OR_RETURN(config.hidden_dim, get_state<int64_t>(state, "hidden_dim"));
  TRAINKIT_ASSIGN_OR_RETURN(config.bias, get_state<bool>(state, "bias"));
  TRAINKIT_ASSIGN_OR_RETURN(config.tied_head, get_state<bool>(state, "tied_head"));
  return config;
}

/// Token files directly in a folder.
std::set<std::filesystem::path> token_files_in(const std::string& folder) {
  std::set<std::filesystem::path> files;
  std::error_code failed;
  for (std::filesystem::directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed)) {
    if (at->path().extension() == ".tokens") files.insert(at->path());
  }
  return files;
}

void remove_new_tokens(const std::string& folder, const std::set<std::filesystem::path>& earlier) {
  for (const std::filesystem::path& file : token_files_in(folder)) {
    std::error_code ignored;
    if (!earlier.contains(file)) std::filesystem::remove(file, ignored);
  }
}

/// Checks that the training texts have documents.
absl::Status check_documents(const Corpus& corpus) {
  const auto end = document_end_token(*corpus.tokenizer);
  for (const TokenizedText& text : corpus.texts) {
    if (end && count_tokens(text.tokens, 0, text.train_tokens, *end) > 0) return absl::OkStatus();
  }
  return bad_text("data.documents", corpus.texts.front().source, "no document ends in the training text", "",
                  "a .jsonl file, a folder of texts, or <|endoftext|> between documents",
                  "--allow_special_tokens parses <|endoftext|>; --no-pack_documents trains on the text as a whole");
}

/// Returns the prompt of --sample or --prompt_file.
absl::StatusOr<std::string> prompt_of(const TransformerOptions& options) {
  if (options.prompt_file.empty()) return options.sample;
  TRAINKIT_ASSIGN_OR_RETURN(const auto file, MappedFile::open(options.prompt_file));
  std::string prompt(file->text());
  TRAINKIT_RETURN_IF_ERROR(file->check());
  if (absl::Status checked = check_text(prompt); !checked.ok()) return add_file_to_error(checked, options.prompt_file);
  return prompt;
}

}  // namespace

TokenizeProgress tokenize_progress() {
  return [shown = int64_t{-1}](int64_t done, int64_t total) mutable {
    const int64_t tenth = total > (int64_t{16} << 20) ? done * 10 / total : -1;
    if (tenth > shown) {
      shown = tenth;
      std::fprintf(stderr, "tokenizing %d%%\n", static_cast<int>(tenth * 10));
    }
    return true;
  };
}

absl::StatusOr<Session> Session::open(const RunOptions& run, const TransformerOptions& options) {
  // A dry run and a resume that is refused change no file of the run.
  std::optional<TemporaryFolder> temporary;
  if (run.dry_run || !run.resume.empty()) {
    TRAINKIT_ASSIGN_OR_RETURN(temporary, TemporaryFolder::create());
  }
  CorpusOptions corpus = corpus_options(options, run.dry_run            ? temporary->path()
                                                 : run.data_dir.empty() ? run.output_dir
                                                                        : run.data_dir);
  if (!run.resume.empty()) {
    TRAINKIT_ASSIGN_OR_RETURN(const auto saved, earlier_file(run, kTokenizerFile));
    corpus.saved_tokenizer = saved.value_or("");
    corpus.prepared_dir = temporary->path();
    corpus.check_digest = [&run](const std::string& digest) { return check_data(run, digest); };
  }
  // Neither does a new run that is refused: it removes the token files that it has written to its folder.
  const bool owns_cache = corpus.cache_dir == run.output_dir && run.resume.empty();
  // Only rank 0 has created the run's folder, maybe on another machine.
  if (owns_cache) TRAINKIT_RETURN_IF_ERROR(Fs::posix().create_directories(run.output_dir).status());
  const auto earlier = owns_cache ? token_files_in(run.output_dir) : std::set<std::filesystem::path>{};
  // A prepared text is needed until it is tokenized. No file of the user can have its place.
  std::optional<TemporaryFolder> texts;
  if (corpus.prepared_dir.empty()) {
    TRAINKIT_ASSIGN_OR_RETURN(texts, TemporaryFolder::create(corpus.cache_dir));
    corpus.prepared_dir = texts->path();
  }
  auto prepared = prepare_corpus(corpus, tokenize_progress());
  if (prepared.ok() && options.pack_documents) {
    if (absl::Status checked = check_documents(*prepared); !checked.ok()) prepared = std::move(checked);
  }
  if (prepared.ok()) return Session(run, options, std::move(temporary), *std::move(prepared));
  if (owns_cache) remove_new_tokens(run.output_dir, earlier);
  return prepared.status();
}

std::string describe_findings(const TokenizedText& text, const TransformerOptions& options) {
  std::string findings;
  if (text.crlf > 0) {
    findings += fmt::format(
        "; {} CRLF line ends{}", text.crlf,
        options.corpus.text.normalize_newlines ? " converted to LF" : " (--normalize_newlines converts them)");
  }
  if (text.empty_documents > 0) findings += fmt::format("; {} empty documents skipped", text.empty_documents);
  if (const std::string note = left_out_note(text.left_out); !note.empty()) findings += "; " + note;
  return findings;
}

RunFacts Session::describe() const {
  RunFacts facts;
  for (size_t i = 0; i < corpus_.texts.size(); ++i) {
    const TokenizedText& text = corpus_.texts[i];
    std::string line = fmt::format("{}: {}, {} tokens, vocabulary {} ({})", text.source, format_size(text.bytes),
                                   text.tokens.size(), corpus_.tokenizer->vocab_size(), corpus_.tokenizer->name());
    if (!corpus_.validation) {
      line += fmt::format("; the last {} tokens are for validation", text.tokens.size() - text.train_tokens);
    }
    facts.emplace_back(i == 0 ? "text" : fmt::format("text {}", i + 1), line + describe_findings(text, options_));
  }
  if (const auto& text = corpus_.validation) {
    facts.emplace_back("validation", fmt::format("{}: {}, {} tokens{}", text->source, format_size(text->bytes),
                                                 text->tokens.size(), describe_findings(*text, options_)));
  }
  if (mixture_) facts.push_back(mixture_->describe().front());
  return facts;
}

int64_t Session::document_end() const {
  return options_.pack_documents ? int64_t{document_end_token(*corpus_.tokenizer).value()} : -1;
}

double Session::target_share() const {
  if (!options_.pack_documents) return 1;
  double positions = 0, targets = 0;
  for (const TokenizedText& text : corpus_.texts) {
    const auto tokens = static_cast<double>(text.train_tokens);
    const double share =
        1 - static_cast<double>(count_tokens(text.tokens, 0, text.train_tokens, document_end())) / tokens;
    const double weight = mixture_ ? text.weight : tokens;
    positions += weight;
    targets += weight * share;
  }
  return targets / positions;
}

std::shared_ptr<const TokenWindows> Session::windows(const TokenizedText& text, TokenWindowsOptions part) const {
  part.block_size = options_.model.block_size;
  part.document_end = document_end();
  return std::make_shared<TokenWindows>(text.tokens, part);
}

std::vector<std::shared_ptr<const Dataset>> Session::training_texts() const {
  std::vector<std::shared_ptr<const Dataset>> texts;
  for (const TokenizedText& text : corpus_.texts) texts.push_back(windows(text, {.end = text.train_tokens}));
  return texts;
}

std::shared_ptr<const Dataset> Session::training_set() const {
  auto texts = training_texts();
  return texts.size() == 1 ? texts[0] : std::make_shared<ConcatDataset>(std::move(texts));
}

void Session::mix() {
  const auto texts = training_texts();
  if (texts.size() == 1 || corpus_.texts[0].weight == 0) return;
  std::vector<Mixture::Part> parts;
  for (size_t i = 0; i < texts.size(); ++i) {
    parts.push_back({corpus_.texts[i].source, texts[i]->size(), corpus_.texts[i].weight});
  }
  mixture_.emplace(std::move(parts), run_.seed);
}

ValidationRows Session::validation_rows() const {
  std::vector<std::shared_ptr<const TokenWindows>> texts;
  const auto add = [&](const TokenizedText& text) {
    texts.push_back(windows(text, {.begin = text.train_tokens, .whole = true}));
  };
  if (corpus_.validation) {
    add(*corpus_.validation);
  } else {
    for (const TokenizedText& text : corpus_.texts) add(text);
  }
  return transformer::validation_rows(texts, options_.eval_max_rows);
}

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

LossFunction text_loss(double target_share) {
  return make_loss_function([target_share](TransformerImpl& model, const Batch& batch) {
    const at::Tensor& targets = batch["y"];
    const at::Tensor mean = loss_of_windows(model, batch);
    const auto positions = static_cast<double>(targets.numel());
    if (!batch.contains("positions")) return LossOutput(mean, positions);
    const double expected = positions * target_share;
    const at::Tensor count = (targets != kIgnoreIndex).sum();
    return LossOutput(at::where(count > 0, mean * count, 0) / expected, expected);  // the mean of none is NaN
  });
}

std::string describe_memory(at::Device device) {
  const auto [free_bytes, total_bytes] = at::accelerator::getMemoryInfo(std::max<c10::DeviceIndex>(device.index(), 0));
  const std::string preset = suggested_preset(static_cast<int64_t>(total_bytes));
  return fmt::format("{} free of {}{}", format_size(static_cast<int64_t>(free_bytes)),
                     format_size(static_cast<int64_t>(total_bytes)),
                     preset.empty() ? "" : "; suggested: --preset " + preset);
}

StateDict Session::model_state() const {
  TransformerConfig config = model_config(options_, corpus_.tokenizer->vocab_size());
  if (config.n_heads == 0) config.n_heads = default_n_heads(config.hidden_dim);
  return state_of(config);
}

absl::Status Session::save() const {
  return save_tokenizer(*corpus_.tokenizer, run_.output_dir + "/" + kTokenizerFile);
}

absl::StatusOr<std::string> Session::sample(Transformer& model, int64_t most_tokens) const {
  GenerateOptions options = options_.sampling;
  options.seed = run_.seed;
  options.max_tokens = std::min(options.max_tokens, most_tokens);
  return sample_text(model, *corpus_.tokenizer, "", options);
}

absl::StatusOr<int> sample_from_run(const RunOptions& run, const TransformerOptions& options, at::Device device) {
  TRAINKIT_ASSIGN_OR_RETURN(const std::string prompt, prompt_of(options));
  TRAINKIT_ASSIGN_OR_RETURN(const CheckpointPath checkpoint, run.resume.empty()
                                                                 ? resolve_checkpoint("latest", run.output_dir)
                                                                 : resumed_checkpoint(run));
  TRAINKIT_ASSIGN_OR_RETURN(const StateDict state, load_checkpoint_state(checkpoint));
  TRAINKIT_ASSIGN_OR_RETURN(const TransformerConfig config, config_from(sub_state(state, "config")));
  TRAINKIT_RETURN_IF_ERROR(validate(config));
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

absl::StatusOr<int> write_demo_data(const std::string& folder) {
  TRAINKIT_RETURN_IF_ERROR(Fs::posix().create_directories(folder).status());
  const std::string path = folder + "/demo.txt";
  TRAINKIT_RETURN_IF_ERROR(write_file_atomically(Fs::posix(), path, demo_text()));
  std::fputs(("wrote " + path + "\ntry: trainkit-transformer --input " + path + "\n").c_str(), stdout);
  return 0;
}

}  // namespace trainkit::transformer
