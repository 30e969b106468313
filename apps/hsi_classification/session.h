#pragma once
/// A scene prepared for training, and its training, validation and test parts.

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hsi_classification/feed.h"
#include "hsi_classification/options.h"
#include "hsi_classification/preprocess.h"
#include "hsi_classification/scene.h"
#include "hsi_classification/split.h"
#include "trainkit/app/placement.h"
#include "trainkit/app/run_options.h"
#include "trainkit/data/prefetcher.h"
#include "trainkit/report/summary.h"
#include "trainkit/tasks/task.h"
#include "trainkit/train/step_memory.h"

namespace trainkit::hsi {

/// The scene of a run: standardised, projected with PCA if requested, with mirrored borders. Shared by all repeats.
class Session {
 public:
  /// Errors: those of load_scene; exit code 4 for a scene with fewer bands than the model needs.
  static absl::StatusOr<Session> open(const ConfigParser& parser, const RunOptions& run, const HsiOptions& options,
                                      const Placement& placement);

  /// Without the values of the cube, which are in the feed's image.
  const Scene& scene() const { return scene_; }
  /// Digest of the cube and the labels.
  const std::string& digest() const { return digest_; }
  const Preprocessing& preprocessing() const { return preprocessing_; }
  const Feed& feed() const { return *feed_; }
  const HsiOptions& options() const { return options_; }
  HsiModelOptions model() const { return model_options(options_, feed_->bands(), scene_.num_classes()); }

  /// Returns the split of a run. A resumed run reads its split.json.
  absl::StatusOr<Split> split(const RunOptions& run) const;
  double leak(const Split& split) const;

  /// Returns the class 0 .. C-1 of each of `pixels` (n); -1 for unlabelled pixels.
  at::Tensor labels_of(const at::Tensor& pixels) const;
  std::shared_ptr<const Dataset> rows(const at::Tensor& pixels, bool augment) const;

  /// Returns the number of `pixels` (n) of each class.
  std::vector<int64_t> class_counts(const at::Tensor& pixels) const;

  /// Returns the classification of patches: training loss with the classes weighted by their frequency among `pixels`
  /// (--class_weights), scores of the scene's classes. Keeps the feed alive.
  std::shared_ptr<Task> task(const at::Tensor& pixels) const;
  /// Returns the rows of the test; with --write_maps those of the whole scene, of which only test pixels have a class.
  std::shared_ptr<const Dataset> test_rows(const Split& split) const;

  /// Returns the parts of a step on training `pixels`, as one device sees it. A scene on the device stays there.
  /// Valid as long as this session.
  StepRecipe recipe(const at::Tensor& pixels) const;

  /// Returns the facts "scene", "split" and "feed" of a run, and a warning for each part that lacks a class.
  RunFacts describe(const Split& split) const;

 private:
  std::shared_ptr<Task> task_with(std::shared_ptr<const Feed> feed, const at::Tensor& pixels) const;
  Session(HsiOptions options, Scene scene, Preprocessing preprocessing, std::shared_ptr<const Feed> feed,
          std::string prepared, std::string digest)
      : options_(std::move(options)),
        scene_(std::move(scene)),
        preprocessing_(std::move(preprocessing)),
        feed_(std::move(feed)),
        prepared_(std::move(prepared)),
        digest_(std::move(digest)) {}
  HsiOptions options_;
  Scene scene_;
  Preprocessing preprocessing_;
  std::shared_ptr<const Feed> feed_;
  std::string prepared_;  // description of the preprocessing
  std::string digest_;
};

}  // namespace trainkit::hsi
