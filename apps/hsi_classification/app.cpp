#include "hsi_classification/app.h"

#include <fmt/format.h>

#include "hsi_classification/benchmark.h"
#include "hsi_classification/export.h"
#include "hsi_classification/initial_scene.h"
#include "hsi_classification/maps.h"
#include "hsi_classification/predict.h"
#include "hsi_classification/trained_scene.h"
#include "trainkit/app/app.h"
#include "trainkit/app/placement.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/report/result_page.h"

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
  TRAINKIT_RETURN_IF_ERROR(Fs::posix().create_directories(folder).status());
  TRAINKIT_RETURN_IF_ERROR(write_demo_scene(folder, {.seed = seed}));
  print_line(
      fmt::format("wrote {0}/demo.mat and {0}/demo_gt.mat\n"
                  "try: trainkit-hsi --cube {0}/demo.mat --gt {0}/demo_gt.mat",
                  folder));
  return 0;
}

absl::Status HsiApp::resolve_options(const ConfigParser&, RunOptions&, const MachineInfo&) {
  return resolve_class_names(options_);
}

absl::Status HsiApp::check_options(const ConfigParser& parser, const RunOptions& run) const {
  return check_hsi_options(parser, run, options_);
}

absl::StatusOr<TrainingTask> HsiApp::open(RunContext& context) {
  if (!session_) {
    TRAINKIT_ASSIGN_OR_RETURN(session_, Session::open(context.parser, context.run, options_, context.placement));
  }
  TRAINKIT_ASSIGN_OR_RETURN(split_, session_->split(context.run));
  const auto validation_set = session_->rows(split_.validation, /*augment=*/false);
  return TrainingTask{.recipe = session_->recipe(split_.train),
                      .training_set = session_->rows(split_.train, options_.augment),
                      .validation_set = validation_set->size() > 0 ? validation_set : nullptr,
                      .task = session_->task(split_.train),
                      .test_set = session_->test_rows(split_),
                      .keep_best = true,
                      .data_digest = session_->digest(),
                      .description = session_->describe(split_)};
}

absl::Status HsiApp::save(const RunOptions& run) const {
  const Scene& scene = session_->scene();
  TRAINKIT_RETURN_IF_ERROR(save_split(run.output_dir + "/" + kSplitFile, split_, scene.height(), scene.width()));
  return save_trained_scene(run.output_dir + "/" + kTrainedSceneFile, trained_scene(scene, session_->preprocessing()));
}

absl::Status HsiApp::on_results(RunContext&, const std::string& folder, TestedRows& tested, ResultPage& page) {
  const Scene& scene = session_->scene();
  tested.scores["leak"] = session_->leak(split_);
  page.add_section("Classification of " + scene.name);
  page.add_note(
      fmt::format("{} training, {} validation and {} test pixels. Leak: the share of test pixels inside a "
                  "training patch.",
                  split_.train.numel(), split_.validation.numel(), split_.test.numel()));
  if (!options_.write_maps) return absl::OkStatus();
  add_maps(page, scene);
  return write_maps(folder, tested.predictions.view({scene.height(), scene.width()}), scene, split_);
}

absl::Status HsiApp::adapt_weights(RunContext&, const RunWeights& from, LoadWeightsOptions& options, RunFacts& facts) {
  return adapt_rows(from, session_->scene(), options_, options, facts);
}

}  // namespace trainkit::hsi
