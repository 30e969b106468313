#include "transformer/app.h"

#include <fmt/format.h>

#include <cmath>

#include "trainkit/core/status.h"
#include "trainkit/optim/adam.h"
#include "transformer/initial_rows.h"
#include "transformer/sample_page.h"
#include "transformer/sampling.h"

namespace trainkit::transformer {

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
  return transformer::write_demo_data(folder);
}

absl::Status TransformerApp::check_options(const ConfigParser& parser, const RunOptions&) const {
  return check_transformer_options(parser, options_);
}

std::optional<ProgramMode> TransformerApp::mode_instead() const {
  if (options_.sample.empty() && options_.prompt_file.empty()) return std::nullopt;
  return ProgramMode{{kSampleMode}, options_.sample.empty() ? "with --prompt_file" : "with --sample"};
}

absl::StatusOr<std::optional<int>> TransformerApp::run_instead(const RunOptions& run, at::Device device) {
  if (!mode_instead()) return std::nullopt;
  TRAINKIT_ASSIGN_OR_RETURN(const int code, sample_from_run(run, options_, device));
  return code;
}

StepRecipe TransformerApp::recipe(const RunContext& context) const {
  const int64_t vocab_size = session_->corpus().tokenizer->vocab_size();
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
  recipe.loss = text_loss(session_->target_share());
  recipe.smaller = smaller_models(options_, vocab_size);
  recipe.set_segments = [options = options_, vocab_size](StepRecipe& other, int64_t segments) mutable {
    options.checkpoint_segments = {segments};
    other.make_model = [options, vocab_size] { return create_model(options, vocab_size).ptr(); };
  };
  recipe.most_segments = options_.model.n_layers;
  recipe.choose_segments = options_.checkpoint_segments.is_auto();
  return recipe;
}

absl::StatusOr<TrainingTask> TransformerApp::open(RunContext& context) {
  TRAINKIT_ASSIGN_OR_RETURN(session_, first_rank_first(context.placement, "preparing the text",
                                                       [&] { return Session::open(context.run, options_); }));
  const ValidationRows validation = session_->validation_rows();
  // The last window of a validation text is padded. Padding has no weight.
  const auto validation_loss = [validation](TransformerImpl& model, const Batch& batch) {
    return LossOutput(loss_of_windows(model, batch), static_cast<double>(validation.targets(batch.row_indices())));
  };
  const at::Device device = context.placement.device();
  RunFacts description = session_->describe();
  if (options_.pack_documents) {
    description.emplace_back(
        "documents", fmt::format("packed; {:.2f} % of the positions have a target", 100 * session_->target_share()));
  }
  if (options_.eval_max_rows > 0) {
    description.emplace_back("evaluation", fmt::format("{} windows, evenly spaced", validation.dataset->size()));
  }
  if (device.is_cuda()) description.emplace_back("memory", describe_memory(device));
  return TrainingTask{.recipe = recipe(context),
                      .training_set = session_->training_set(),
                      .order = session_->mixture() ? session_->mixture()->order() : nullptr,
                      .validation_set = validation.dataset,
                      .validation_loss = make_loss_function(validation_loss),
                      .final_lr_share = options_.final_lr_share,
                      .keep_best = true,
                      .data_digest = session_->corpus().digest,
                      .description = std::move(description)};
}

void TransformerApp::apply_plan(const MemoryPlan& plan) {
  if (options_.checkpoint_segments.is_auto()) options_.checkpoint_segments = {plan.checkpoint_segments};
}

void TransformerApp::configure(RunContext&, TrainerOptions& options, DeviceReplicator&) {
  options.config = session_->model_state();
  options.weight_unit = "tokens";
}

absl::Status TransformerApp::save(const RunOptions&) const { return session_->save(); }

namespace {

/// Tokens of the sample at an evaluation, of which a run may have many.
constexpr int64_t kShortSample = 80;

/// Adds a sample to the report. One that cannot be written (a full disk) is a warning: the run does not need it.
void keep_sample(const RunContext& context, const Sample& sample, const Metrics& best) {
  const auto folder = results_dir(context.run);
  const absl::Status kept = folder.ok() ? add_sample(*folder, sample, best) : folder.status();
  if (!kept.ok()) context.print("warning: a sample is missing in the report: " + error_line(kept));
}

}  // namespace

absl::Status TransformerApp::on_evaluation(RunContext& context, int64_t step, Metrics& metrics,
                                           DeviceReplicator& devices) {
  metrics.merge(language_metrics(metrics["loss"], session_->corpus()));
  if (!options_.eval_sample || !context.placement.is_first()) return absl::OkStatus();
  Transformer model(std::dynamic_pointer_cast<TransformerImpl>(devices.module()));
  TRAINKIT_ASSIGN_OR_RETURN(const std::string text, session_->sample(model, kShortSample));
  keep_sample(context, {.step = step, .title = sample_title(step, context), .text = text}, metrics);
  return absl::OkStatus();
}

std::string TransformerApp::sample_title(int64_t step, const RunContext& context) const {
  return fmt::format("Weights of step {}, temperature {:g}, seed {}", step, options_.sampling.temperature,
                     context.run.seed);
}

std::vector<int64_t> TransformerApp::mixed_rows(const RunContext& context, const TrainerResult& result) const {
  const BatchPlan& batch = context.placement.batch;
  const int64_t rows = session_->mixture()->order()->size();
  // As training_loader: an epoch has the rows of full batches, a batch those of all devices.
  const int64_t used = context.run.drop_last ? rows - rows % context.run.batch_size.value.value_or(1) : rows;
  const int64_t per_batch = batch.batch_size * batch.replicas, batches = (used + per_batch - 1) / per_batch;
  const double epochs = std::floor(result.epochs);
  return session_->mixture()->count_rows(
      static_cast<int64_t>(epochs), std::llround((result.epochs - epochs) * static_cast<double>(batches)) * per_batch,
      used);
}

std::string TransformerApp::describe_scores(const RunContext& context, const TrainerResult& result,
                                            const Metrics&) const {
  std::string mixture =
      session_->mixture() ? session_->mixture()->describe_shares(mixed_rows(context, result)) + "\n" : "";
  if (result.evaluation.empty()) return mixture;
  return mixture +
         fmt::format(
             "validation loss {:.4f}, perplexity {:.3f}, {:.4f} bits per character (best loss {:.4f} at step {})\n",
             result.evaluation.at("loss"), result.evaluation.at("perplexity"),
             result.evaluation.at("bits_per_character"), result.best_evaluation.at("loss"), result.best_step);
}

absl::StatusOr<Metrics> TransformerApp::test(RunContext& context, const TrainedModel& trained) {
  if (trained.result.signal != 0) return Metrics{};
  TRAINKIT_RETURN_IF_ERROR(trained.load_best().status());
  if (context.placement.is_first()) TRAINKIT_RETURN_IF_ERROR(sample_at_end(context, trained));
  return session_->mixture() ? session_->mixture()->shares(mixed_rows(context, trained.result)) : Metrics{};
}

absl::Status TransformerApp::sample_at_end(RunContext& context, const TrainedModel& trained) {
  Transformer model(std::dynamic_pointer_cast<TransformerImpl>(trained.devices.module()));
  TRAINKIT_ASSIGN_OR_RETURN(last_sample_, session_->sample(model, options_.sampling.max_tokens));
  const bool is_best = trained.best && trained.best->step() >= 0;
  const int64_t step = is_best ? trained.best->step() : trained.result.steps;
  const char* which = is_best ? ", the best in validation" : ", the last weights";
  keep_sample(context, {.step = kLastSample, .title = sample_title(step, context) + which, .text = last_sample_},
              trained.result.best_evaluation);
  return absl::OkStatus();
}

absl::Status TransformerApp::finish(RunContext& context, const TrainedModel&) {
  context.print("\n--- text generated by the model ---\n" + last_sample_ + "\n---");
  return absl::OkStatus();
}

absl::Status TransformerApp::adapt_weights(RunContext&, const RunWeights& from, LoadWeightsOptions& options,
                                           RunFacts& facts) {
  return adapt_rows(from, *session_->corpus().tokenizer, options_, options, facts);
}

}  // namespace trainkit::transformer
