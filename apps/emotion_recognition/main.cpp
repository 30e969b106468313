// trainkit-emotion: recognises emotions in clips of faces and voices. Flags to settings to objects to Trainer::fit.
#include <ATen/Context.h>
#include <torch/utils.h>

#include <cstdio>

#include "emotion_recognition/options.h"
#include "emotion_recognition/results.h"
#include "emotion_recognition/session.h"
#include "trainkit/core/status.h"
#include "trainkit/logging/summary.h"
#include "trainkit/nn/onednn_matmul.h"
#include "trainkit/train/memory_plan.h"
#include "trainkit/train/placement.h"
#include "trainkit/train/program.h"
#include "trainkit/train/run_folder.h"
#include "trainkit/train/weights.h"

namespace trainkit::emotion {
namespace {

int print(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
  return 0;
}

absl::StatusOr<int> train(const ConfigParser& parser, RunOptions& run, const EmotionOptions& options,
                          const Machine& machine, Program& program) {
  TRAINKIT_ASSIGN_OR_RETURN(Placement placement, place_run(parser, run, machine, program));
  const auto say = [&](const std::string& line) {
    if (placement.is_first()) print(line);
  };
  if (placement.is_first()) {
    TRAINKIT_RETURN_IF_ERROR(prepare_output_dir(parser, run));
    if (!run.dry_run) program.output_dir = run.output_dir;
  }
  torch::manual_seed(run.seed);
  at::globalContext().setBenchmarkCuDNN(run.cudnn_benchmark);
  share_processors(run, machine, options.cache_dir.empty() ? ReadCost::kDecode : ReadCost::kCopy);
  TRAINKIT_ASSIGN_OR_RETURN(Session session, Session::open(run, options));
  TRAINKIT_ASSIGN_OR_RETURN(const MemoryPlan memory,
                            plan_memory(parser, run, machine, session.recipe(run, placement), placement));
  const std::string cache = session.describe_cache();
  if (!run.dry_run) {
    if (!cache.empty()) say(cache.substr(0, cache.size() - 1));
    TRAINKIT_ASSIGN_OR_RETURN(const int stopped, session.fill_cache(machine, placement, say));
    if (stopped != 0) return stopped;
  }
  const auto order = std::make_shared<RandomSampler>(session.train()->size(), RandomSamplerOptions{.seed = run.seed});
  TRAINKIT_ASSIGN_OR_RETURN(const auto loader, training_loader(session.train_rows(), order, run, machine, placement));
  std::unique_ptr<Prefetcher> validation;
  if (session.validation()) {
    TRAINKIT_ASSIGN_OR_RETURN(validation,
                              evaluation_loader(session.validation_rows(), scored(run), machine, placement));
  }
  TRAINKIT_RETURN_IF_ERROR(compare_data(placement, {{"training", session.train().get()}}));

  TRAINKIT_ASSIGN_OR_RETURN(const auto devices, DeviceReplicator::create([&] { return session.create_model(); },
                                                                         replicator_options(run, placement)));
  if (!run.init_from.empty()) {
    TRAINKIT_RETURN_IF_ERROR(load_weights(*devices->module(), run.init_from).status());
    devices->synchronize();
  }
  TRAINKIT_ASSIGN_OR_RETURN(TrainerOptions settings, trainer_options(parser, run, placement, *loader));
  settings.monitor = "weighted_f1";
  settings.monitor_higher_is_better = true;
  settings.predicted_memory = memory.predicted();
  settings.predicted_device_memory = memory.predicted_on_device();
  settings.explain_out_of_memory = memory.ladder;
  const std::string plan = session.describe() + (run.dry_run ? cache : "") + memory.describe() +
                           describe_run(run, settings, placement, *devices, *loader);
  say(run.json ? plan_to_json(plan, memory) : plan);
  TRAINKIT_ASSIGN_OR_RETURN(
      auto trainer,
      Trainer::create(*devices, make_optimizer(run, options, *devices->module(), placement.batch.replicas), settings));
  if (run.dry_run) return 0;

  TRAINKIT_ASSIGN_OR_RETURN(const auto folder, RunFolder::open(parser, run, placement, "trainkit-emotion"));
  TRAINKIT_ASSIGN_OR_RETURN(
      BestModel best,
      BestModel::open(run.output_dir, run.resume,
                      {.metric = settings.monitor, .higher_is_better = true, .writes = placement.is_first()}));
  const auto counts = std::make_shared<EvaluationCounts>(static_cast<int64_t>(session.labels().size()));
  absl::Status kept;
  const auto on_evaluation = [&](int64_t step, Metrics& metrics) {
    kept.Update(add_scores(*counts, placement, metrics));
    if (kept.ok()) kept = best.offer(step, metrics.at(settings.monitor), *devices->module());
  };
  TRAINKIT_ASSIGN_OR_RETURN(const TrainerResult result,
                            trainer.fit(*loader, session.loss(),
                                        {.validation = validation.get(),
                                         .validation_loss = Session::evaluation_loss(counts),
                                         .on_evaluation = on_evaluation,
                                         .logger = &folder->logger()}));
  TRAINKIT_RETURN_IF_ERROR(kept);
  Metrics scores;
  if (result.signal == 0 && session.test()) {
    TRAINKIT_RETURN_IF_ERROR(best.restore(*devices->module()).status());
    devices->synchronize();
    TRAINKIT_ASSIGN_OR_RETURN(const TestResult tested, test_model(*devices, session, session.test_rows(), run, machine,
                                                                  placement, settings.precision));
    scores = tested.metrics();
    if (placement.is_first()) {
      TRAINKIT_RETURN_IF_ERROR(write_results(run.output_dir, session, tested, best));
      log_test(folder->logger(), result, scores, class_table(session.labels(), tested));
    }
  }
  TRAINKIT_ASSIGN_OR_RETURN(const int code, folder->finish(result, *loader, scores));
  say(describe_result(result, run, scores, best));
  return code;
}

absl::StatusOr<int> run_emotion(int argc, char** argv, Program& program) {
  RunOptions run;
  EmotionOptions options;
  set_run_defaults(run);
  ConfigParser parser(
      {.name = "trainkit-emotion",
       .version = library_versions()["trainkit"],
       .description = "Recognises emotions in clips, by faces (ResNet18 on frames) and voices (mel spectrograms).",
       .examples = {"trainkit-emotion --data_dir MELD.Raw --visual_weights resnet18.pth",
                    "trainkit-emotion --data_dir MELD.Raw --preset multi_gpu_3x4090",
                    "trainkit-emotion --data_dir MELD.Raw --use_multi_gpu --gpu_ids 0 1 2 --batch_size 16 "
                    "--num_workers 12 --auto_scale_lr",
                    "trainkit-emotion --make_demo_data demo && trainkit-emotion --data_dir demo --epochs 5",
                    "trainkit-emotion --dataset csv --train_csv train.csv --val_csv val.csv --clip_dir clips "
                    "--label_column mood --path_column file"}});
  add_run_flags(parser, run);
  add_emotion_flags(parser, options);
  add_emotion_presets(parser);
  TRAINKIT_ASSIGN_OR_RETURN(const Request request, parser.parse(argc, argv));
  if (request == Request::kHelp || request == Request::kVersion) return print(parser.text(request));
  TRAINKIT_ASSIGN_OR_RETURN(const Machine machine, launched_machine());
  TRAINKIT_ASSIGN_OR_RETURN(const at::Device device, resolve_device(parser, run, machine));
  parser.set_defaults(device_defaults(device.is_cuda()), device.is_cuda() ? "cuda" : "cpu");
  if (request == Request::kPrintConfig) return print(parser.text(request));
  if (!run.make_demo_data.empty()) return write_demo_data(run.make_demo_data, run.seed);
  TRAINKIT_RETURN_IF_ERROR(check_run_options(parser, run, machine));
  TRAINKIT_RETURN_IF_ERROR(check_emotion_options(parser, run, options));
  use_onednn_matmul();
  return train(parser, run, options, machine, program);
}

}  // namespace
}  // namespace trainkit::emotion

int main(int argc, char** argv) {
  return trainkit::run_program(
      [&](trainkit::Program& program) { return trainkit::emotion::run_emotion(argc, argv, program); });
}
