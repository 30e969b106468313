#pragma once
/// Prepares the clips of a run, and makes its models and losses.

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "emotion_recognition/clip_cache.h"
#include "emotion_recognition/clip_dataset.h"
#include "emotion_recognition/options.h"
#include "trainkit/app/placement.h"
#include "trainkit/data/split.h"
#include "trainkit/optim/optimizer.h"
#include "trainkit/report/summary.h"
#include "trainkit/tasks/task.h"
#include "trainkit/train/checkpoint.h"
#include "trainkit/train/step_memory.h"

namespace trainkit::emotion {

/// Holds the splits of a run.
class Session {
 public:
  /// Finds and reads the splits. Errors: those of find_split, read_clips, check_absent, check_disjoint and
  /// group_folds. With --folds it is the run of fold `fold`, whose parts come from the training table.
  static absl::StatusOr<Session> open(const RunOptions& run, const EmotionOptions& options, int64_t fold = 0);

  const std::shared_ptr<const ClipDataset>& train() const { return train_; }
  const std::shared_ptr<const ClipDataset>& validation() const { return validation_; }
  /// Test clips; null if --dataset csv has no --test_csv.
  const std::shared_ptr<const ClipDataset>& test() const { return test_; }
  /// Rows of the splits. They are read from --cache_dir after fill_cache(), otherwise decoded at each read.
  const std::shared_ptr<const Dataset>& train_rows() const { return rows_[0]; }
  const std::shared_ptr<const Dataset>& validation_rows() const { return rows_[1]; }
  const std::shared_ptr<const Dataset>& test_rows() const { return rows_[2]; }
  /// Returns the parts that exist, with the names "train", "validation" and "test".
  std::vector<ClipPart> parts() const;
  const std::vector<std::string>& labels() const { return train_->list().labels; }
  const EmotionOptions& options() const { return options_; }

  /// Decodes the clips that --cache_dir lacks with all CPUs, or waits for the process that does so. Local rank 0
  /// decodes, unless another run already does. `say` prints a line. Does nothing without --cache_dir.
  ///
  /// Returns 0, or 128 + n if signal n stopped it. Errors: those of cache_rows and of other ranks.
  absl::StatusOr<int> fill_cache(const MachineInfo& machine, const Placement& placement,
                                 const std::function<void(const std::string&)>& say);
  /// Describes the cache; empty without --cache_dir.
  RunFacts describe_cache() const;

  /// Makes a new model and loads --visual_weights. Throws absl::BadStatusOrAccess with the Error of the file.
  std::shared_ptr<EmotionModel> create_model() const;

  /// Returns the classification of clips: label smoothing and class weights in training, weighted F1 chooses the best
  /// weights.
  std::shared_ptr<Task> task() const;

  /// Describes a training step to the memory planner. Valid as long as this session.
  StepRecipe recipe() const;

  /// Describes the clips and the model, with warnings.
  RunFacts describe(const RunOptions& run) const;

 private:
  Session(EmotionOptions options, std::shared_ptr<const ClipDataset> train,
          std::shared_ptr<const ClipDataset> validation, std::shared_ptr<const ClipDataset> test)
      : options_(std::move(options)),
        train_(std::move(train)),
        validation_(std::move(validation)),
        test_(std::move(test)),
        rows_{train_, validation_, test_} {}

  static absl::StatusOr<Session> open_fold(const RunOptions& run, const EmotionOptions& options, int64_t fold);
  /// Returns the clips to cache: the parts, or the table of all folds.
  std::vector<ClipPart> cached_parts() const;
  RowCacheOptions cache_options() const;

  EmotionOptions options_;
  std::shared_ptr<const ClipDataset> train_, validation_, test_;
  std::array<std::shared_ptr<const Dataset>, 3> rows_;
  // With --folds: the whole table, the rows of each part in it, and the fold of this run.
  std::shared_ptr<const ClipDataset> table_;
  FoldRows fold_rows_;
  int64_t fold_ = 0;
};

/// Whether the model hears the clips.
bool has_sound(const EmotionOptions& options);

/// Returns a sentence if the checkpoint is of an earlier version that mixed the channels of sound otherwise, see
/// kSoundMix; empty if not.
std::string describe_other_sound(const CheckpointPath& checkpoint, const EmotionOptions& options);

/// Returns class scores (B, C) of a batch. The batch needs only the fields of the model's modality.
at::Tensor class_scores(EmotionModel& model, const Batch& batch);

/// Makes AdamW with separate learning rates for the parts of `model`: "visual", "audio", "fusion".
std::unique_ptr<Optimizer> make_optimizer(const RunOptions& run, const EmotionOptions& options,
                                          const torch::nn::Module& model, int64_t replicas);

/// Implements --make_demo_data: writes clips in MELD's layout. Faces and voices depend on the label.
absl::StatusOr<int> write_demo_data(const std::string& folder, uint64_t seed);

}  // namespace trainkit::emotion
