#pragma once
/// The clips of a run, and what a model learns from them.

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "emotion_recognition/clip_cache.h"
#include "emotion_recognition/clip_dataset.h"
#include "emotion_recognition/evaluation_counts.h"
#include "emotion_recognition/options.h"
#include "trainkit/app/placement.h"
#include "trainkit/optim/optimizer.h"
#include "trainkit/train/loss.h"
#include "trainkit/train/step_memory.h"

namespace trainkit::emotion {

class Session {
 public:
  /// Finds and reads the splits. Errors: those of find_split, read_clips and check_disjoint.
  static absl::StatusOr<Session> open(const RunOptions& run, const EmotionOptions& options);

  const std::shared_ptr<const ClipDataset>& train() const { return train_; }
  const std::shared_ptr<const ClipDataset>& validation() const { return validation_; }
  /// Null if a table of another data set was not given.
  const std::shared_ptr<const ClipDataset>& test() const { return test_; }
  /// Their rows, to be read: from --cache_dir once fill_cache() has been called, else decoded each time.
  const std::shared_ptr<const Dataset>& train_rows() const { return rows_[0]; }
  const std::shared_ptr<const Dataset>& validation_rows() const { return rows_[1]; }
  const std::shared_ptr<const Dataset>& test_rows() const { return rows_[2]; }
  const std::vector<std::string>& labels() const { return train_->list().labels; }
  const EmotionOptions& options() const { return options_; }

  /// Decodes what --cache_dir does not have yet, in all processors, or waits for the process that does so: `first` of
  /// the run's on this machine unless another run is at it. `say` takes lines. Returns 128 + the signal that stopped
  /// it, else 0; nothing without --cache_dir. Errors: those of cache_clips and of other ranks.
  absl::StatusOr<int> fill_cache(const Machine& machine, const Placement& placement,
                                 const std::function<void(const std::string&)>& say);
  /// "cache ..." with a line end; empty without --cache_dir.
  std::string describe_cache() const;

  /// A new model, with --visual_weights. Throws absl::BadStatusOrAccess with the Error of the file.
  std::shared_ptr<EmotionModel> create_model() const;

  /// Cross-entropy, smoothed and with the weights of the classes, and "accuracy". The mean is over the rows, so that
  /// replicas add up to one process on all of them.
  LossFunction loss() const;

  /// The loss of an evaluation: plain cross-entropy, which can be compared over runs whatever they are trained with,
  /// and "accuracy". What the model says of each row goes to `counts`.
  static LossFunction evaluation_loss(std::shared_ptr<EvaluationCounts> counts);

  StepRecipe recipe(const RunOptions& run, const Placement& placement) const;

  /// "clips ..." and what a person should know of them, for the first lines of a run, with line ends.
  std::string describe() const;

 private:
  Session(EmotionOptions options, std::shared_ptr<const ClipDataset> train,
          std::shared_ptr<const ClipDataset> validation, std::shared_ptr<const ClipDataset> test)
      : options_(std::move(options)),
        train_(std::move(train)),
        validation_(std::move(validation)),
        test_(std::move(test)),
        rows_{train_, validation_, test_} {}
  std::vector<ClipPart> parts() const;

  EmotionOptions options_;
  std::shared_ptr<const ClipDataset> train_, validation_, test_;
  std::array<std::shared_ptr<const Dataset>, 3> rows_;
};

/// The class scores of a batch of clips, (B, C): its fields are those that the model's modality needs.
at::Tensor class_scores(EmotionModel& model, const Batch& batch);

/// (C) float32: inversely as frequent as each label, with a mean of 1 over the clips; 0 for one that does not occur.
at::Tensor class_weights(const std::vector<int64_t>& counts);

/// AdamW with a learning rate for each part of `model`: "visual", "audio", "fusion".
std::unique_ptr<Optimizer> make_optimizer(const RunOptions& run, const EmotionOptions& options,
                                          const torch::nn::Module& model, int64_t replicas);

/// --make_demo_data: clips in MELD's layout, with faces whose mouth and voices whose tone depend on the label.
absl::StatusOr<int> write_demo_data(const std::string& folder, uint64_t seed);

}  // namespace trainkit::emotion
