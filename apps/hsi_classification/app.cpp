#include "hsi_classification/app.h"

#include "app/results/classification.h"
#include "hsi_classification/benchmark.h"
#include "hsi_classification/export.h"
#include "hsi_classification/initial_scene.h"
#include "hsi_classification/predict.h"
#include "hsi_classification/results.h"
#include "hsi_classification/trained_scene.h"
#include "trainkit/app/app.h"
#include "trainkit/app/placement.h"
#include "trainkit/core/status.h"

namespace trainkit::hsi {

namespace {

PlanExample plan_example(const ConfigParser& parser, int64_t) {
  for (const char* flag : {"data_dir", "cube", "plan_data", "scene"}) {
    if (parser.is_given(flag)) return {};
  }
  return {.settings = {{"plan_data", "145x145x200x16x10249"}},
          .data = "Indian Pines: 145 x 145 pixels, 200 bands, 16 classes, 10249 labelled pixels"};
}

}  // namespace

std::vector<AppCommand> HsiApp::commands() {
  std::vector<AppCommand> commands = benchmark_commands();
  commands.insert(commands.begin(), {predict_command(*this, options_), export_command(*this, options_)});
  return commands;
}

AppInfo HsiApp::info() const {
  return {.name = "trainkit-hsi",
          .description = "Classifies the pixels of a hyperspectral scene.",
          .examples = {"trainkit-hsi --data_dir hsi --scene indian_pines --epoch 40",
                       "trainkit-hsi --cube scene.mat --gt scene_gt.mat --model hybridsn --parallel 4",
                       ("trainkit-hsi --cube urban.mat --gt urban.mat --background_class none --class_weights "
                        "--class_names ground anomaly"),
                       "trainkit-hsi --data_dir hsi --scene salinas_a --split disjoint --repeats 5",
                       "trainkit-hsi --make_demo_data demo && trainkit-hsi --cube demo/demo.mat --gt demo/demo_gt.mat",
                       "trainkit-hsi predict runs/hsi --cube scene.mat --out prediction",
                       "trainkit-hsi export runs/hsi model.onnx", "trainkit-hsi benchmark --gpus 4"},
          .help_flags = {"scene", "cube", "gt", "model", "patch_size"},
          .files = {kSplitFile, kTrainedSceneFile},
          .plan_example = plan_example};
}

absl::StatusOr<int> HsiApp::write_demo_data(const std::string& folder, uint64_t seed) {
  return hsi::write_demo_data(folder, seed);
}

absl::Status HsiApp::resolve_options(const ConfigParser&, RunOptions&, const MachineInfo&) {
  return resolve_class_names(options_);
}

absl::Status HsiApp::check_options(const ConfigParser& parser, const RunOptions& run) const {
  return check_hsi_options(parser, run, options_);
}

RunOptions HsiApp::repeat_of(const RunOptions& run, int64_t index) const {
  return hsi::repeat_of(run, options_, index);
}

absl::StatusOr<TrainingTask> HsiApp::open(RunContext& context) {
  if (!session_) {
    TRAINKIT_ASSIGN_OR_RETURN(session_, Session::open(context.parser, context.run, options_, context.placement));
  }
  TRAINKIT_ASSIGN_OR_RETURN(split_, session_->split(context.run));
  const auto validation_set = session_->rows(split_.validation, /*augment=*/false);
  counts_ = std::make_shared<EvaluationCounts>(session_->scene().num_classes());
  return TrainingTask{.recipe = session_->recipe(context.run, context.placement, split_.train),
                      .training_set = session_->rows(split_.train, options_.augment),
                      .validation_set = validation_set->size() > 0 ? validation_set : nullptr,
                      .validation_loss = session_->evaluation_loss(counts_),
                      .keep_best = true,
                      .data_digest = session_->scene().digest(),
                      .description = session_->describe(split_)};
}

absl::Status HsiApp::save(const RunOptions& run) const {
  const Scene& scene = session_->scene();
  TRAINKIT_RETURN_IF_ERROR(save_split(run.output_dir + "/" + kSplitFile, split_, scene.height(), scene.width()));
  return save_trained_scene(run.output_dir + "/" + kTrainedSceneFile, trained_scene(scene, session_->preprocessing()));
}

absl::Status HsiApp::on_evaluation(RunContext& context, int64_t, Metrics& metrics, DeviceReplicator&) {
  TRAINKIT_ASSIGN_OR_RETURN(const at::Tensor counts, counts_->take(context.placement.group.get()));
  metrics.merge(class_metrics(session_->scene(), classification_scores(counts)));
  return absl::OkStatus();
}

absl::StatusOr<Metrics> HsiApp::test(RunContext& context, const TrainedModel& trained) {
  if (trained.result.signal != 0) return Metrics{};
  TRAINKIT_ASSIGN_OR_RETURN(tested_step_, trained.load_best());
  TRAINKIT_ASSIGN_OR_RETURN(const TestResult tested,
                            test_model(trained.devices, *session_, split_, context.run, context.machine,
                                       context.placement, trained.precision, /*whole_scene=*/options_.write_maps));
  if (context.placement.is_first()) {
    TRAINKIT_ASSIGN_OR_RETURN(const std::string folder, results_dir(context.run));
    TRAINKIT_RETURN_IF_ERROR(write_results(folder, *session_, split_, tested, options_.write_maps));
    TRAINKIT_RETURN_IF_ERROR(write_result_page(folder, *session_, split_, tested, options_.write_maps, tested_step_));
    log_test(trained.logger, trained.result, tested.metrics(session_->scene()), class_table(session_->scene(), tested));
  }
  return tested.metrics(session_->scene());
}

std::string HsiApp::describe_scores(const RunContext&, const TrainerResult& result, const Metrics& scores) const {
  return describe_result(result, scores, tested_step_);
}

absl::Status HsiApp::finish_repeats(const RunOptions&, const std::vector<Metrics>& scores) {
  print_line("\nmean and standard deviation of the runs: " + hsi::describe_scores(mean_and_deviation(scores)));
  return absl::OkStatus();
}

absl::Status HsiApp::adapt_weights(RunContext&, const RunWeights& from, LoadWeightsOptions& options, RunFacts& facts) {
  return adapt_rows(from, session_->scene(), options_, options, facts);
}

}  // namespace trainkit::hsi
