#include "transformer/app.h"

#include <ATen/DeviceAccelerator.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "trainkit/app/run_folder.h"
#include "trainkit/core/format.h"
#include "trainkit/core/status.h"
#include "trainkit/data/adapters.h"
#include "trainkit/io/folder_files.h"
#include "trainkit/optim/adam.h"
#include "trainkit/tasks/language.h"
#include "transformer/demo_text.h"

namespace trainkit::transformer {
namespace {

/// Names of the token files in a folder and of their records.
std::vector<std::string> token_files_in(const std::string& folder) {
  std::error_code ignored;
  return list_files(folder, {".tokens", ".tokens.json"}, ignored).names;
}

/// Describes the memory of a GPU, with the preset suggested for it: "20 GiB free of 24 GiB; suggested: ...".
std::string describe_memory(at::Device device) {
  const auto [free_bytes, total_bytes] = at::accelerator::getMemoryInfo(std::max<c10::DeviceIndex>(device.index(), 0));
  const std::string preset = suggested_preset(static_cast<int64_t>(total_bytes));
  return fmt::format("{} free of {}{}", format_size(static_cast<int64_t>(free_bytes)),
                     format_size(static_cast<int64_t>(total_bytes)),
                     preset.empty() ? "" : "; suggested: --preset " + preset);
}

}  // namespace

AppInfo TransformerApp::info() const {
  return {.name = "trainkit-transformer",
          .description = "Trains a Transformer language model on text.",
          .examples = {"trainkit-transformer --input book.txt --preset shakespeare_char_cpu",
                       "trainkit-transformer --batch-size 16 --hidden-dim 256 --n-layers 3 --max-epochs 100",
                       "trainkit-transformer --input books.txt:0.7 articles.jsonl:0.3 --pack_documents",
                       "trainkit-transformer --output_dir runs/transformer --resume latest",
                       "trainkit-transformer --output_dir runs/transformer --sample \"To be\"",
                       "trainkit-transformer evaluate runs/transformer --input other.txt"},
          .help_flags = {"input", "tokenizer", "n_layers", "n_heads", "hidden_dim", "block_size", "sample"},
          .files = {kTokenizerFile}};
}

absl::StatusOr<int> TransformerApp::write_demo_data(const std::string& folder, uint64_t) {
  TRAINKIT_RETURN_IF_ERROR(Fs::posix().create_directories(folder).status());
  const std::string path = folder + "/demo.txt";
  TRAINKIT_RETURN_IF_ERROR(write_file_atomically(Fs::posix(), path, demo_text()));
  std::fputs(("wrote " + path + "\ntry: trainkit-transformer --input " + path + "\n").c_str(), stdout);
  return 0;
}

std::optional<OtherWork> TransformerApp::other_work() const {
  if (options_.sample.empty() && options_.prompt_file.empty()) return std::nullopt;
  return OtherWork{
      .mode = {{kSampleMode}, options_.sample.empty() ? "with --prompt_file" : "with --sample"},
      .work = [this](const RunOptions& run, at::Device device) { return sample_from_run(run, options_, device); }};
}

absl::Status TransformerApp::open_corpus(const RunOptions& run) {
  // A dry run and a resume that is refused change no file of the run.
  if (run.dry_run || !run.resume.empty()) {
    TRAINKIT_ASSIGN_OR_RETURN(temporary_, TemporaryFolder::create());
  }
  CorpusOptions how = corpus_options(options_, run.dry_run            ? temporary_->path()
                                               : run.data_dir.empty() ? run.output_dir
                                                                      : run.data_dir);
  if (!run.resume.empty()) {
    TRAINKIT_ASSIGN_OR_RETURN(const auto saved, earlier_file(run, kTokenizerFile));
    how.saved_tokenizer = saved.value_or("");
    how.prepared_dir = temporary_->path();
    how.check_digest = [&run](const std::string& digest) { return check_data(run, digest); };
  }
  // Neither does a new run that is refused: it removes the token files that it has written to its folder.
  const bool owns_cache = how.cache_dir == run.output_dir && run.resume.empty();
  // Only rank 0 has created the run's folder, maybe on another machine.
  if (owns_cache) TRAINKIT_RETURN_IF_ERROR(Fs::posix().create_directories(run.output_dir).status());
  const auto earlier = owns_cache ? token_files_in(run.output_dir) : std::vector<std::string>{};
  // A prepared text is needed until it is tokenized. No file of the user can have its place.
  std::optional<TemporaryFolder> texts;
  if (how.prepared_dir.empty()) {
    TRAINKIT_ASSIGN_OR_RETURN(texts, TemporaryFolder::create(how.cache_dir));
    how.prepared_dir = texts->path();
  }
  auto prepared = prepare_corpus(how, tokenize_progress());
  absl::Status status = prepared.status();
  if (status.ok() && options_.pack_documents) status = check_documents(*prepared);
  if (!status.ok()) {
    for (const std::string& file : owns_cache ? token_files_in(run.output_dir) : earlier) {
      const std::string path = run.output_dir + "/" + file;
      if (std::find(earlier.begin(), earlier.end(), file) == earlier.end()) std::remove(path.c_str());
    }
    return status;
  }
  corpus_ = *std::move(prepared);
  return absl::OkStatus();
}

double TransformerApp::share_of_targets(int64_t document_end) const {
  double positions = 0, targets = 0;
  for (const TokenizedText& text : corpus_.texts) {
    const auto tokens = static_cast<double>(text.train_tokens);
    const double share =
        1 - static_cast<double>(count_tokens(text.tokens, 0, text.train_tokens, document_end)) / tokens;
    const double weight = mixture_ ? text.weight : tokens;
    positions += weight;
    targets += weight * share;
  }
  return targets / positions;
}

StepRecipe TransformerApp::recipe(const RunContext& context) const {
  const int64_t vocab_size = corpus_.tokenizer->vocab_size();
  const double lr = resolve_lr(context.run, context.placement.batch.replicas);
  const AdamWOptions adamw{
      .lr = lr, .betas = {options_.beta1, options_.beta2}, .weight_decay = context.run.weight_decay};
  const MuonOptions muon{.lr = lr,
                         .match_rms_adamw = true,
                         .weight_decay = context.run.weight_decay,
                         .betas = {options_.beta1, options_.beta2},
                         .selects = [](const std::string& name) { return name.starts_with("transformer.h."); }};
  StepRecipe recipe;
  recipe.make_model = [this, vocab_size] { return create_model(options_, vocab_size).ptr(); };
  recipe.make_optimizer = [adamw, muon, uses_muon = options_.optimizer == "muon"]() -> std::unique_ptr<Optimizer> {
    if (uses_muon) return std::make_unique<Muon>(muon);
    return std::make_unique<AdamW>(adamw);
  };
  recipe.smaller = smaller_models(options_, vocab_size);
  recipe.set_segments = [options = options_, vocab_size](StepRecipe& other, int64_t segments) mutable {
    options.checkpoint_segments = {segments};
    other.make_model = [options, vocab_size] { return create_model(options, vocab_size).ptr(); };
  };
  recipe.most_segments = options_.model.n_layers;
  recipe.choose_segments = options_.checkpoint_segments.is_auto();
  return recipe;
}

std::shared_ptr<Task> TransformerApp::task(const RunContext& context, const ValidationRows& validation) const {
  GenerateOptions sampling = options_.sampling;
  sampling.seed = context.run.seed;
  return language(loss_of_windows, {.targets_of = validation.targets_of,
                                    .target_share = target_share_,
                                    .tokenizer = corpus_.tokenizer,
                                    .characters_per_token = corpus_.characters_per_token,
                                    .sampling = sampling,
                                    .evaluation_tokens = options_.eval_sample ? 80 : 0});
}

RunFacts TransformerApp::describe(const RunContext& context, const ValidationRows& validation) const {
  RunFacts facts = corpus_.describe(options_.corpus.text);
  if (mixture_) facts.push_back(mixture_->describe().front());
  if (options_.pack_documents) {
    facts.emplace_back("documents",
                       fmt::format("packed; {:.2f} % of the positions have a target", 100 * target_share_));
  }
  if (options_.eval_max_rows > 0) {
    facts.emplace_back("evaluation", fmt::format("{} windows, evenly spaced", validation.dataset->size()));
  }
  const at::Device device = context.placement.device();
  if (device.is_cuda()) facts.emplace_back("memory", describe_memory(device));
  return facts;
}

absl::StatusOr<TrainingTask> TransformerApp::open(RunContext& context) {
  TRAINKIT_RETURN_IF_ERROR(
      first_rank_first(context.placement, "preparing the text", [&] { return open_corpus(context.run); }));
  TokenWindowsOptions how{.block_size = options_.model.block_size};
  if (options_.pack_documents) how.document_end = document_end_token(*corpus_.tokenizer).value();
  const auto texts = windows_of(corpus_.texts, how);
  if (texts.size() > 1 && corpus_.texts[0].weight > 0) {
    std::vector<Mixture::Part> parts;
    for (size_t i = 0; i < texts.size(); ++i) {
      parts.push_back({corpus_.texts[i].source, texts[i]->size(), corpus_.texts[i].weight});
    }
    mixture_.emplace(std::move(parts), context.run.seed);
  }
  if (options_.pack_documents) target_share_ = share_of_targets(how.document_end);
  std::shared_ptr<const Dataset> training_set = texts[0];
  if (texts.size() > 1) {
    training_set =
        std::make_shared<ConcatDataset>(std::vector<std::shared_ptr<const Dataset>>(texts.begin(), texts.end()));
  }
  how.whole = true;
  const ValidationRows validation =
      validation_rows(windows_of(corpus_.validation_texts(), how), options_.eval_max_rows);
  return TrainingTask{.recipe = recipe(context),
                      .training_set = std::move(training_set),
                      .order = mixture_ ? mixture_->order() : nullptr,
                      .validation_set = validation.dataset,
                      .task = task(context, validation),
                      .final_lr_share = options_.final_lr_share,
                      .keep_best = true,
                      .data_digest = corpus_.digest,
                      .description = describe(context, validation)};
}

void TransformerApp::apply_plan(const MemoryPlan& plan) {
  if (options_.checkpoint_segments.is_auto()) options_.checkpoint_segments = {plan.checkpoint_segments};
}

void TransformerApp::configure(RunContext&, TrainerOptions& options, DeviceReplicator&) {
  options.config = model_state(options_, corpus_.tokenizer->vocab_size());
  options.weight_unit = "tokens";
}

absl::Status TransformerApp::save(const RunOptions& run) const {
  for (const CachedText& text : corpus_.files) text.update_record();
  return save_tokenizer(*corpus_.tokenizer, run.output_dir + "/" + kTokenizerFile);
}

absl::Status TransformerApp::on_results(RunContext& context, const std::string&, TestedRows& tested, ResultPage&) {
  if (!mixture_) return absl::OkStatus();
  const BatchPlan& batch = context.placement.batch;
  const int64_t rows = mixture_->order()->size();
  // As training_loader: an epoch has the rows of full batches, a batch those of all devices.
  const int64_t used = context.run.drop_last ? rows - rows % context.run.batch_size.value.value_or(1) : rows;
  const int64_t per_batch = batch.batch_size * batch.replicas, batches = (used + per_batch - 1) / per_batch;
  const double epochs = std::floor(tested.epochs);
  mixed_rows_ =
      mixture_->count_rows(static_cast<int64_t>(epochs),
                           std::llround((tested.epochs - epochs) * static_cast<double>(batches)) * per_batch, used);
  tested.scores.merge(mixture_->shares(mixed_rows_));
  return absl::OkStatus();
}

absl::Status TransformerApp::finish(RunContext& context, const TrainerResult&) {
  if (mixture_) context.print(mixture_->describe_shares(mixed_rows_));
  return absl::OkStatus();
}

}  // namespace trainkit::transformer
