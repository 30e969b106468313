#include "gpt2_recommender/app.h"

#include <fmt/format.h>

#include "gpt2_recommender/catalog.h"
#include "gpt2_recommender/gpt2_model.h"
#include "gpt2_recommender/recommend.h"
#include "trainkit/core/status.h"

namespace trainkit::rec {
namespace {

/// Writes the adapters of `model` to `<results>/<name>` in peft's layout. Does nothing without --lora_rank.
absl::Status save_adapters(const torch::nn::Module& model, const RecOptions& options, const RunOptions& run,
                           const char* name) {
  const auto* recommender = dynamic_cast<const Gpt2Recommender*>(&model);
  if (!recommender || options.lora.rank == 0) return absl::OkStatus();
  TRAINKIT_ASSIGN_OR_RETURN(const std::string folder, results_dir(run));
  return save_lora(*recommender->gpt2(), options.lora, folder + "/" + name);
}

/// Implements --merge_lora: writes GPT-2 with the adapters merged into its weights to `<folder>/merged`, in Hugging
/// Face's layout. Restores the weights of `model` bit for bit.
absl::Status save_merged(const torch::nn::Module& model, const std::string& folder) {
  const auto* recommender = dynamic_cast<const Gpt2Recommender*>(&model);
  if (!recommender) return absl::OkStatus();
  GPT2Model gpt2 = recommender->gpt2();
  merge_lora(*gpt2);
  absl::Status saved = save_gpt2(*gpt2, folder + "/merged");
  unmerge_lora(*gpt2);
  return saved;
}

}  // namespace

std::vector<AppCommand> RecommenderApp::commands() { return recommend_commands(*this, options_); }

AppInfo RecommenderApp::info() const {
  return {
      .name = "trainkit-gpt2rec",
      .description = "Trains a recommender on user-item interactions and texts of users and items, with BPR and GPT-2.",
      .examples = {"trainkit-gpt2rec --data_dir ml-100k --model bpr_mf",
                   "trainkit-gpt2rec --data_dir ml-100k --gpt2 tiny-gpt2 --use_cache",
                   "trainkit-gpt2rec --data_dir ml-1m --min_rating 3 --parallel 4",
                   "trainkit-gpt2rec --data_dir ml-1m --split leave_one_out --sampled_negatives 100",
                   ("trainkit-gpt2rec --data_dir events.csv --user_column customer --item_column sku --rating_column "
                    "none --repeated_events count"),
                   ("trainkit-gpt2rec --data_dir train.tsv --test_data test.tsv --test_negatives test.negative "
                    "--metric hit@10"),
                   "trainkit-gpt2rec --make_demo_data demo && trainkit-gpt2rec --data_dir demo/ml-1m",
                   "trainkit-gpt2rec --data_dir ml-100k --resume latest",
                   "trainkit-gpt2rec recommend runs/gpt2rec --user 196 --top_n 20"},
      .help_flags = {"model", "gpt2", "use_cache", "lora_rank", "min_rating"},
      .files = {kCatalogFile, kSplitFile, kSeenFile},
      .plan_example = plan_example};
}

void RecommenderApp::add_flags(ConfigParser& parser) {
  add_rec_flags(parser, options_);
  add_rec_presets(parser);
}

absl::StatusOr<int> RecommenderApp::write_demo_data(const std::string& folder, uint64_t seed) {
  TRAINKIT_RETURN_IF_ERROR(write_demo_ratings(folder, {.seed = seed}));
  print_line(
      fmt::format("wrote {0}/ml-1m, {0}/ml-100k and {0}/recbole\ntry: trainkit-gpt2rec --data_dir {0}/ml-1m", folder));
  return 0;
}

absl::Status RecommenderApp::resolve_options(const ConfigParser& parser, RunOptions& run, const MachineInfo& machine) {
  TRAINKIT_ASSIGN_OR_RETURN(const Placement placement, resolve_devices(parser, run, machine));
  rounding_ = share_global_batch(parser, run, placement.batch.replicas);
  return absl::OkStatus();
}

absl::Status RecommenderApp::check_options(const ConfigParser& parser, const RunOptions& run) const {
  return check_rec_options(parser, run, options_);
}

absl::StatusOr<TrainingTask> RecommenderApp::open(RunContext& context) {
  const RunOptions& run = context.run;
  const Placement& placement = context.placement;
  TRAINKIT_ASSIGN_OR_RETURN(session_, Session::open(run, options_));
  TRAINKIT_ASSIGN_OR_RETURN(const TripletFeed training, session_->feed(Part::kTrain, run, placement));
  TRAINKIT_ASSIGN_OR_RETURN(const TripletFeed validation, session_->feed(Part::kValidation, run, placement));
  RunFacts description = session_->describe();
  const std::string fitted =
      fit_default_batch(context.parser, context.run, placement.batch.replicas, training.triplets->size());
  if (!fitted.empty()) {
    rounding_ = fitted;
    TRAINKIT_ASSIGN_OR_RETURN(context.placement.batch,
                              resolve_batch(context.parser, context.run, placement.batch.replicas));
  }
  if (!rounding_.empty()) description.emplace_back("batch", rounding_);
  const int64_t vectors = session_->interactions().num_users() + session_->interactions().num_items();
  const std::string optimizer = choose_optimizer(context.run, options_, placement.device().is_cpu(), vectors);
  if (!optimizer.empty()) description.emplace_back("optimizer", optimizer);
  session_->set_optimizer(options_.optimizer);
  const std::string chosen = fit_regularisation(context.parser, context.run, options_, training.triplets->size());
  if (!chosen.empty()) description.emplace_back("chosen", chosen);
  return TrainingTask{
      .recipe = session_->recipe(placement, training),
      .training_set = training.rows(),
      .validation_set = validation.rows(),
      .test = session_->test(),
      .on_trained = [this, run = context.run](
                        const torch::nn::Module& model) { return save_adapters(model, options_, run, "adapter"); },
      .loss = session_->loss(training, placement.devices),
      .validation_loss = session_->loss(validation, placement.devices),
      .make_optimizer = [this, run = context.run, replicas = context.placement.batch.replicas](
                            const torch::nn::Module& model) { return make_optimizer(run, replicas, options_, model); },
      .keep_best = true,
      .data_digest = session_->interactions().digest(),
      .description = std::move(description)};
}

void RecommenderApp::configure(RunContext& context, TrainerOptions& options, DeviceReplicator& devices) {
  model_ = devices.module();
  options.release_memory = [&context, &devices] {
    const bool left = leave_cache_mode(devices);
    if (left) {
      context.print("out of memory: freed the cache of GPT-2's output; every step computes it now, with the same loss");
    }
    return left;
  };
}

absl::Status RecommenderApp::on_evaluation(RunContext&, int64_t, Metrics& metrics, DeviceReplicator& devices) {
  const RankingVectors vectors = dynamic_cast<Recommender&>(*devices.module()).vectors();
  metrics.merge(session_->validation().score(vectors.users, vectors.items));
  if (!popularity_) popularity_ = session_->validation().score_popularity().at(options_.metric);
  metrics[kPopularity + options_.metric] = *popularity_;
  return absl::OkStatus();
}

absl::Status RecommenderApp::on_best(RunContext& context, const torch::nn::Module& model) {
  return save_adapters(model, options_, context.run, "best_adapter");
}

absl::Status RecommenderApp::on_results(RunContext& context, const std::string& folder, TestedRows& tested,
                                        ResultPage&) {
  test_ = tested.scores;
  if (tested.step >= 0) TRAINKIT_RETURN_IF_ERROR(on_best(context, *model_));
  return options_.merge_lora ? save_merged(*model_, folder) : absl::OkStatus();
}

absl::Status RecommenderApp::finish(RunContext& context, const TrainerResult& result) {
  const std::string warning = compare_with_popularity(result.best_evaluation, test_, options_.metric);
  if (!warning.empty()) context.print("warning: " + warning);
  return absl::OkStatus();
}

absl::Status RecommenderApp::adapt_weights(RunContext&, const RunWeights& from, LoadWeightsOptions& options,
                                           RunFacts& facts) {
  return adapt_rows(from, session_->interactions(), options_, options, facts);
}

}  // namespace trainkit::rec
