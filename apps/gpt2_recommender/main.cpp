// trainkit-gpt2rec: recommends items to users. Flags to settings to objects to Trainer::fit.
#include <ATen/Context.h>
#include <torch/utils.h>

#include <cstdio>

#include "gpt2_recommender/options.h"
#include "gpt2_recommender/results.h"
#include "gpt2_recommender/session.h"
#include "trainkit/core/status.h"
#include "trainkit/logging/summary.h"
#include "trainkit/nn/onednn_matmul.h"
#include "trainkit/train/memory_plan.h"
#include "trainkit/train/placement.h"
#include "trainkit/train/program.h"
#include "trainkit/train/run_folder.h"
#include "trainkit/train/weights.h"

namespace trainkit::rec {
namespace {

int print(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
  return 0;
}

absl::StatusOr<int> train(const ConfigParser& parser, RunOptions& run, const RecOptions& options,
                          const std::string& rounding, const Machine& machine, Program& program) {
  TRAINKIT_ASSIGN_OR_RETURN(Placement placement, place_run(parser, run, machine, program));
  const auto say = [&](const std::string& line) {
    if (placement.is_first()) print(line);
  };
  if (placement.is_first()) {
    TRAINKIT_RETURN_IF_ERROR(prepare_output_dir(parser, run));
    if (!run.dry_run) program.output_dir = run.output_dir;
  }
  at::globalContext().setBenchmarkCuDNN(run.cudnn_benchmark);
  torch::manual_seed(run.seed);
  share_processors(run, machine, ReadCost::kCopy);  // a batch of triplets takes microseconds
  TRAINKIT_ASSIGN_OR_RETURN(const Session session, Session::open(run, options, placement));
  TRAINKIT_ASSIGN_OR_RETURN(const TripletFeed train_feed, session.feed(Part::kTrain, run, placement));
  TRAINKIT_ASSIGN_OR_RETURN(const TripletFeed validation_feed, session.feed(Part::kValidation, run, placement));
  TRAINKIT_ASSIGN_OR_RETURN(const MemoryPlan memory,
                            plan_memory(parser, run, machine, session.recipe(run, placement, train_feed), placement));
  const auto train_set = train_feed.rows(), validation_set = validation_feed.rows();
  const auto order = std::make_shared<RandomSampler>(train_set->size(), RandomSamplerOptions{.seed = run.seed});
  TRAINKIT_ASSIGN_OR_RETURN(const auto loader, training_loader(train_set, order, run, machine, placement));
  TRAINKIT_ASSIGN_OR_RETURN(const auto validation, evaluation_loader(validation_set, run, machine, placement));
  TRAINKIT_RETURN_IF_ERROR(
      compare_data(placement, {{"training", train_set.get()}, {"validation", validation_set.get()}}));

  TRAINKIT_ASSIGN_OR_RETURN(const auto devices, DeviceReplicator::create([&] { return session.create_model(); },
                                                                         replicator_options(run, placement)));
  const auto model = std::dynamic_pointer_cast<Recommender>(devices->module());
  if (!run.init_from.empty()) {
    TRAINKIT_RETURN_IF_ERROR(load_weights(*model, run.init_from).status());
    devices->synchronize();
  }
  TRAINKIT_ASSIGN_OR_RETURN(TrainerOptions settings, trainer_options(parser, run, placement, *loader));
  settings.monitor = "ndcg@10";
  settings.monitor_higher_is_better = true;
  settings.predicted_memory = memory.predicted();
  settings.predicted_device_memory = memory.predicted_on_device();
  settings.explain_out_of_memory = memory.ladder;
  settings.release_memory = [&] {
    const bool left = leave_cache_mode(*devices);
    if (left) say("out of memory: GPT-2's output is no longer kept; it runs in every step, and the loss is the same");
    return left;
  };
  const std::string plan =
      session.describe() + rounding + memory.describe() + describe_run(run, settings, placement, *devices, *loader);
  say(run.json ? plan_to_json(plan, memory) : plan);
  TRAINKIT_ASSIGN_OR_RETURN(auto trainer,
                            Trainer::create(*devices, make_optimizer(run, placement.batch.replicas), settings));
  if (run.dry_run) return 0;

  TRAINKIT_ASSIGN_OR_RETURN(const auto folder, RunFolder::open(parser, run, placement, "trainkit-gpt2rec"));
  TRAINKIT_ASSIGN_OR_RETURN(
      BestModel best,
      BestModel::open(run.output_dir, run.resume,
                      {.metric = settings.monitor, .higher_is_better = true, .writes = placement.is_first()}));
  absl::Status kept;
  const auto on_evaluation = [&](int64_t step, Metrics& metrics) {
    const RankingVectors vectors = model->vectors();
    metrics.merge(session.validation().score(vectors.users, vectors.items));
    if (kept.ok()) kept = best.offer(step, metrics.at("ndcg@10"), *model);
    if (kept.ok() && best.writes() && best.step() == step) kept = save_best_adapters(*model, session, run);
  };
  TRAINKIT_ASSIGN_OR_RETURN(const TrainerResult result,
                            trainer.fit(*loader, session.loss(train_feed, placement.plan.devices),
                                        {.validation = validation.get(),
                                         .validation_loss = session.loss(validation_feed, placement.plan.devices),
                                         .on_evaluation = on_evaluation,
                                         .logger = &folder->logger()}));
  TRAINKIT_RETURN_IF_ERROR(kept);
  TestScores scores;
  if (placement.is_first()) {
    TRAINKIT_ASSIGN_OR_RETURN(scores, write_results(run, session, result, best, *model, folder->logger()));
  }
  TRAINKIT_ASSIGN_OR_RETURN(const int code,
                            folder->finish(result, *loader, scores.model.empty() ? Metrics{} : scores.summary()));
  say(describe_result(result, run, scores, best.step()));
  return code;
}

absl::StatusOr<int> run_gpt2rec(int argc, char** argv, Program& program) {
  RunOptions run;
  RecOptions options;
  set_run_defaults(run);
  ConfigParser parser(
      {.name = "trainkit-gpt2rec",
       .version = library_versions()["trainkit"],
       .description = "Trains a recommender on who chose what and what is known of both, by BPR, with GPT-2.",
       .examples = {"trainkit-gpt2rec --data_dir ml-100k --model bpr_mf",
                    "trainkit-gpt2rec --data_dir ml-100k --gpt2 tiny-gpt2 --use_cache",
                    "trainkit-gpt2rec --data_dir ml-1m --min_rating 3 --parallel 4",
                    "trainkit-gpt2rec --data_dir ml-1m --split leave_one_out --sampled_negatives 100",
                    "trainkit-gpt2rec --make_demo_data demo && trainkit-gpt2rec --data_dir demo/ml-1m",
                    "trainkit-gpt2rec --data_dir ml-100k --resume latest"}});
  add_run_flags(parser, run);
  add_rec_flags(parser, options);
  add_rec_presets(parser);
  TRAINKIT_ASSIGN_OR_RETURN(const Request request, parser.parse(argc, argv));
  if (request == Request::kHelp || request == Request::kVersion) return print(parser.text(request));
  TRAINKIT_ASSIGN_OR_RETURN(const Machine machine, launched_machine());
  TRAINKIT_ASSIGN_OR_RETURN(const at::Device device, resolve_device(parser, run, machine));
  parser.set_defaults(device_defaults(device.is_cuda()), device.is_cuda() ? "cuda" : "cpu");
  if (request == Request::kPrintConfig) return print(parser.text(request));
  if (!run.make_demo_data.empty()) return write_demo_data(run.make_demo_data, run.seed);
  TRAINKIT_ASSIGN_OR_RETURN(const DevicePlan plan, resolve_devices(parser, run, machine));
  const std::string rounding = share_global_batch(parser, run, plan.replicas);
  TRAINKIT_RETURN_IF_ERROR(check_run_options(parser, run, machine));
  TRAINKIT_RETURN_IF_ERROR(check_rec_options(parser, run, options));
  use_onednn_matmul();
  return train(parser, run, options, rounding, machine, program);
}

}  // namespace
}  // namespace trainkit::rec

int main(int argc, char** argv) {
  return trainkit::run_program(
      [&](trainkit::Program& program) { return trainkit::rec::run_gpt2rec(argc, argv, program); });
}
