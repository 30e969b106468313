#pragma once
/// Declares this trainer's own settings. Settings of every trainer are in trainkit/app/run_options.h.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "emotion_recognition/clip_dataset.h"
#include "emotion_recognition/clips.h"
#include "emotion_recognition/model.h"
#include "trainkit/app/run_options.h"
#include "trainkit/config/config.h"

namespace trainkit::emotion {

/// Values of the flags. Those of a part are in the part's own options, which model_options, dataset_options and
/// clip_columns complete.
struct EmotionOptions {
  /// MELD, or csv for other tables.
  std::string dataset = "MELD";
  std::string train_csv = {}, val_csv = {}, test_csv = {};
  std::string clip_dir = {};
  ClipColumns columns = {};
  std::string csv_delimiter = ",";
  ClipDatasetOptions clips = {};
  double audio_seconds = 5;
  std::string cache_dir = {};
  /// Largest share of absent clips in a part.
  double max_missing_share = 0.1;
  /// Folds of a cross-validation over the training table; 0: none. Clips of one value of columns.group stay together.
  int64_t folds = 0;
  /// Number of clips to plan for without a data set. 0: read the data set.
  int64_t plan_data = 0;

  EmotionModelOptions model = {};
  /// both, visual or audio.
  std::string modality = "both";
  std::string visual_weights = {};

  /// Learning rates. Unset: a tenth of --lr for the encoders, --lr for the fusion.
  std::optional<double> lr_visual = {}, lr_audio = {}, lr_fusion = {};
  bool class_weights = true;
  double label_smoothing = 0.1;

  double used_lr_visual(double lr) const { return lr_visual.value_or(lr / 10); }
  double used_lr_audio(double lr) const { return lr_audio.value_or(lr / 10); }
  double used_lr_fusion(double lr) const { return lr_fusion.value_or(lr); }
};

/// Sets this trainer's defaults of `run`. Call it before add_run_flags.
void set_run_defaults(RunOptions& run);

/// Adds every flag of EmotionOptions.
void add_emotion_flags(ConfigParser& parser, EmotionOptions& options);

/// Sets the default of --batch_size by --model_size: the smallest batch that the reference guide gives for it.
void set_batch_default(ConfigParser& parser, const EmotionOptions& options);

/// Adds the presets multi_gpu_3x4090, the reference guide's training script, and audio_only.
void add_emotion_presets(ConfigParser& parser);

/// Checks the rules between the flags. An error names the source of the value (flag, file, preset).
absl::Status check_emotion_options(const ConfigParser& parser, const RunOptions& run, const EmotionOptions& options);

// Options of the parts, from the flags.
Modality modality_of(const EmotionOptions& options);
EmotionModelOptions model_options(const EmotionOptions& options, int64_t num_classes);
ClipDatasetOptions dataset_options(const EmotionOptions& options);
ClipColumns clip_columns(const EmotionOptions& options);

}  // namespace trainkit::emotion
