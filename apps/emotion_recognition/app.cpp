#include "emotion_recognition/app.h"

#include "emotion_recognition/initial_rows.h"
#include "trainkit/app/app.h"
#include "trainkit/core/status.h"
#include "trainkit/train/checkpoint.h"

namespace trainkit::emotion {

namespace {

// Source: the reference guide for three RTX 4090 (docs/guides.md), with MELD's training clips. The rate is the number
// of clips (3 s of 720p) that one core decodes per second to 8 frames and sound, measured as in docs/emotion.md.
PlanExample plan_example(const ConfigParser& parser, int64_t) {
  PlanExample example{.settings = {{"devices", "3"}, {"gpu", "rtx4090"}, {"row_rate", "10"}},
                      .guide = "20 to 24 rows per device",
                      .parts = {{"in all", 18000, 20000, "total"}}};
  const bool has_data = parser.is_given("data_dir") || parser.is_given("train_csv");
  if (!has_data) example.settings.emplace_back("plan_data", "9989");
  return example;
}

}  // namespace

AppInfo EmotionApp::info() const {
  return {
      .name = "trainkit-emotion",
      .description =
          "Trains a model that recognises emotions in clips from faces (ResNet18) and voices (mel "
          "spectrograms).",
      .examples = {"trainkit-emotion --data_dir MELD.Raw --visual_weights resnet18.pth",
                   "trainkit-emotion --data_dir MELD.Raw --preset multi_gpu_3x4090",
                   ("trainkit-emotion --data_dir MELD.Raw --use_multi_gpu --gpu_ids 0 1 2 --batch_size 16 "
                    "--num_workers 12 --auto_scale_lr"),
                   "trainkit-emotion --make_demo_data demo && trainkit-emotion --data_dir demo --epochs 5",
                   "trainkit-emotion predict runs/emotion clips --out probabilities.csv",
                   ("trainkit-emotion --dataset csv --train_csv train.csv --val_csv val.csv --clip_dir clips "
                    "--label_column mood --path_column file"),
                   ("trainkit-emotion --dataset csv --train_csv clips.csv --clip_dir clips --path_column file "
                    "--folds 5 --group speaker --preset audio_only")},
      .help_flags = {"dataset", "train_csv", "cache_dir", "model_size", "modality", "fusion_type", "visual_weights"},
      .files = {kLabelsFile},
      .plan_example = plan_example};
}

void EmotionApp::add_flags(ConfigParser& parser) {
  add_emotion_flags(parser, options_);
  add_emotion_presets(parser);
}

absl::StatusOr<int> EmotionApp::write_demo_data(const std::string& folder, uint64_t seed) {
  return emotion::write_demo_data(folder, seed);
}

absl::Status EmotionApp::check_options(const ConfigParser& parser, const RunOptions& run) const {
  return check_emotion_options(parser, run, options_);
}

absl::StatusOr<TrainingTask> EmotionApp::open(RunContext& context) {
  TRAINKIT_ASSIGN_OR_RETURN(session_, Session::open(context.run, options_, context.repeat));
  RunFacts description = session_->describe(context.run);
  if (!context.run.resume.empty()) {
    const auto checkpoint = resumed_checkpoint(context.run);
    const std::string note = checkpoint.ok() ? describe_other_sound(*checkpoint, options_) : "";
    if (!note.empty()) description.emplace_back("note", note);
  }
  if (context.run.dry_run) {
    for (const auto& fact : session_->describe_cache()) description.push_back(fact);
  }
  std::vector<std::pair<std::string, std::vector<BadSample>>> absent;
  for (const ClipPart& part : session_->parts()) absent.emplace_back(part.name, part.clips->list().absent());
  return TrainingTask{
      .recipe = session_->recipe(),
      .training_set = session_->train_rows(),
      .validation_set = session_->validation_rows(),
      .task = session_->task(),
      .test_set = session_->test_rows(),
      .bad_samples = std::move(absent),
      .make_optimizer = [this, run = context.run, replicas = context.placement.batch.replicas](
                            const torch::nn::Module& model) { return make_optimizer(run, options_, model, replicas); },
      .keep_best = true,
      .data_digest = session_->train()->list().digest(),
      .description = std::move(description)};
}

absl::StatusOr<int> EmotionApp::prepare(RunContext& context, TrainingTask& task) {
  if (const RunFacts cache = session_->describe_cache(); !cache.empty()) context.print(to_text(cache));
  const auto say = [&](const std::string& line) { context.print(line); };
  TRAINKIT_ASSIGN_OR_RETURN(const int interrupted, session_->fill_cache(context.machine, context.placement, say));
  task.training_set = session_->train_rows();
  task.validation_set = session_->validation_rows();
  task.test_set = session_->test_rows();
  return interrupted;
}

void EmotionApp::configure(RunContext&, TrainerOptions& options, DeviceReplicator&) {
  if (has_sound(options_)) options.config["sound"] = std::string(kSoundMix);
}

absl::Status EmotionApp::adapt_weights(RunContext&, const RunWeights& from, LoadWeightsOptions& options,
                                       RunFacts& facts) {
  return adapt_rows(from, session_->labels(), options_, options, facts);
}

}  // namespace trainkit::emotion
