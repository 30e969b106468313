// trainkit-hsi: classifies the pixels of a hyperspectral scene. Flags to settings to objects to Trainer::fit.
#include <ATen/Context.h>
#include <torch/utils.h>

#include <cstdio>

#include "hsi_classification/benchmark.h"
#include "hsi_classification/models.h"
#include "hsi_classification/options.h"
#include "hsi_classification/results.h"
#include "hsi_classification/session.h"
#include "trainkit/core/status.h"
#include "trainkit/logging/summary.h"
#include "trainkit/nn/onednn_matmul.h"
#include "trainkit/train/memory_plan.h"
#include "trainkit/train/placement.h"
#include "trainkit/train/program.h"
#include "trainkit/train/run_folder.h"
#include "trainkit/train/weights.h"

namespace trainkit::hsi {
namespace {

int print(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
  return 0;
}

/// One training and its test. `scores` stays empty if it was stopped or was a dry run. The first one plans `memory`,
/// and the batch of all.
absl::StatusOr<int> train(const ConfigParser& parser, RunOptions run, const Session& session, const Machine& machine,
                          Placement& placement, std::optional<MemoryPlan>& memory, Metrics& scores) {
  const auto say = [&](const std::string& line) {
    if (placement.is_first()) print(line);
  };
  torch::manual_seed(run.seed);
  TRAINKIT_ASSIGN_OR_RETURN(const Split split, session.split(run, placement));
  const auto train_set = session.rows(split.train, session.options().augment);
  const auto validation_set = session.rows(split.validation, /*augment=*/false);
  if (!memory) {
    TRAINKIT_ASSIGN_OR_RETURN(
        memory, plan_memory(parser, run, machine, session.recipe(run, placement, split.train), placement));
  }
  run.batch_size.value = run.batch_size.value.value_or(placement.batch.batch_size);
  const auto order = std::make_shared<RandomSampler>(train_set->size(), RandomSamplerOptions{.seed = run.seed});
  TRAINKIT_ASSIGN_OR_RETURN(const auto loader, training_loader(train_set, order, run, machine, placement));
  TRAINKIT_ASSIGN_OR_RETURN(const auto validation, evaluation_loader(validation_set, run, machine, placement));
  TRAINKIT_RETURN_IF_ERROR(
      compare_data(placement, {{"training", train_set.get()}, {"validation", validation_set.get()}}));

  TRAINKIT_ASSIGN_OR_RETURN(const auto devices, DeviceReplicator::create([&] { return create_model(session.model()); },
                                                                         replicator_options(run, placement)));
  if (!run.init_from.empty()) {
    TRAINKIT_RETURN_IF_ERROR(load_weights(*devices->module(), run.init_from).status());
    devices->synchronize();
  }
  TRAINKIT_ASSIGN_OR_RETURN(TrainerOptions settings, trainer_options(parser, run, placement, *loader));
  settings.predicted_memory = memory->predicted();
  settings.predicted_device_memory = memory->predicted_on_device();
  settings.explain_out_of_memory = memory->ladder;
  const std::string plan =
      session.describe(split) + memory->describe() + describe_run(run, settings, placement, *devices, *loader);
  say(run.json ? plan_to_json(plan, *memory) : plan);
  TRAINKIT_ASSIGN_OR_RETURN(auto trainer,
                            Trainer::create(*devices, make_optimizer(run, placement.batch.replicas), settings));
  if (run.dry_run) return 0;

  TRAINKIT_ASSIGN_OR_RETURN(const auto folder, RunFolder::open(parser, run, placement, "trainkit-hsi"));
  TRAINKIT_ASSIGN_OR_RETURN(const TrainerResult result,
                            trainer.fit(*loader, session.loss(),
                                        {.validation = validation_set->size() > 0 ? validation.get() : nullptr,
                                         .logger = &folder->logger()}));
  if (result.signal == 0) {
    const bool maps = session.options().write_maps;
    TRAINKIT_ASSIGN_OR_RETURN(const TestResult tested, test_model(*devices, session, split, run, machine, placement,
                                                                  settings.precision, /*whole_scene=*/maps));
    scores = tested.metrics();
    if (placement.is_first()) {
      TRAINKIT_RETURN_IF_ERROR(write_results(run.output_dir, session, split, tested, maps));
      log_test(folder->logger(), result, tested.metrics(), class_table(session.scene(), tested));
    }
  }
  TRAINKIT_ASSIGN_OR_RETURN(const int code, folder->finish(result, *loader, scores));
  say(describe_result(result, run, scores));
  return code;
}

/// All repeats, one after the other, and what they come to together.
absl::StatusOr<int> train_all(const ConfigParser& parser, const RunOptions& run, const HsiOptions& options,
                              const Machine& machine, Program& program) {
  TRAINKIT_ASSIGN_OR_RETURN(Placement placement, place_run(parser, repeat_of(run, options, 0), machine, program));
  if (placement.is_first()) {
    for (int64_t i = 0; i < options.repeats; ++i) {
      TRAINKIT_RETURN_IF_ERROR(prepare_output_dir(parser, repeat_of(run, options, i)));
    }
    if (!run.dry_run) program.output_dir = run.output_dir;
  }
  at::globalContext().setBenchmarkCuDNN(run.cudnn_benchmark);
  share_processors(run, machine, ReadCost::kCopy);  // patches are copied from memory
  TRAINKIT_ASSIGN_OR_RETURN(const Session session, Session::open(parser, run, options, placement));
  std::vector<Metrics> results;
  std::optional<MemoryPlan> memory;
  for (int64_t i = 0; i < options.repeats; ++i) {
    Metrics scores;
    TRAINKIT_ASSIGN_OR_RETURN(const int code,
                              train(parser, repeat_of(run, options, i), session, machine, placement, memory, scores));
    if (code != 0 || run.dry_run) return code;
    results.push_back(std::move(scores));
  }
  if (options.repeats == 1 || !placement.is_first()) return 0;
  TRAINKIT_RETURN_IF_ERROR(write_repeats(run.output_dir, results));
  return print("\nmean and standard deviation of the runs: " + describe_scores(mean_and_deviation(results)));
}

absl::StatusOr<int> run_hsi(int argc, char** argv, Program& program) {
  if (is_benchmark_command(argc, argv)) return run_benchmark_command(argc, argv);
  RunOptions run;
  HsiOptions options;
  set_run_defaults(run);
  ConfigParser parser(
      {.name = "trainkit-hsi",
       .version = library_versions()["trainkit"],
       .description = "Classifies the pixels of a hyperspectral scene. Also: trainkit-hsi benchmark, sweep, "
                      "quick_perf_test (each with --help).",
       .examples = {"trainkit-hsi --data_dir hsi --scene indian_pines --epoch 40",
                    "trainkit-hsi --cube scene.mat --gt scene_gt.mat --model hybridsn --parallel 4",
                    "trainkit-hsi --data_dir hsi --scene salinas_a --split disjoint --repeats 5",
                    "trainkit-hsi --make_demo_data demo && trainkit-hsi --cube demo/demo.mat --gt demo/demo_gt.mat",
                    "trainkit-hsi benchmark --gpus 4"}});
  add_run_flags(parser, run);
  add_hsi_flags(parser, options);
  TRAINKIT_ASSIGN_OR_RETURN(const Request request, parser.parse(argc, argv));
  if (request == Request::kHelp || request == Request::kVersion) return print(parser.text(request));
  TRAINKIT_ASSIGN_OR_RETURN(const Machine machine, launched_machine());
  TRAINKIT_ASSIGN_OR_RETURN(const at::Device device, resolve_device(parser, run, machine));
  parser.set_defaults(device_defaults(device.is_cuda()), device.is_cuda() ? "cuda" : "cpu");
  if (request == Request::kPrintConfig) return print(parser.text(request));
  if (!run.make_demo_data.empty()) return write_demo_data(run.make_demo_data, run.seed);
  TRAINKIT_RETURN_IF_ERROR(check_run_options(parser, run, machine));
  TRAINKIT_RETURN_IF_ERROR(check_hsi_options(parser, run, options));
  use_onednn_matmul();
  return train_all(parser, run, options, machine, program);
}

}  // namespace
}  // namespace trainkit::hsi

int main(int argc, char** argv) {
  return trainkit::run_program([&](trainkit::Program& program) { return trainkit::hsi::run_hsi(argc, argv, program); });
}
