#pragma once
/// A scene made ready for training, and the parts of it that a run trains on, watches and scores.

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hsi_classification/feed.h"
#include "hsi_classification/options.h"
#include "hsi_classification/scene.h"
#include "hsi_classification/split.h"
#include "trainkit/app/placement.h"
#include "trainkit/app/run_options.h"
#include "trainkit/data/prefetcher.h"
#include "trainkit/train/loss.h"
#include "trainkit/train/step_memory.h"

namespace trainkit::hsi {

/// The scene of a run, standardised, with PCA if asked, and its border mirrored. The same for all repeats.
class Session {
 public:
  /// Errors are those of load_scene, and exit code 4 for a scene with fewer bands than the model needs.
  static absl::StatusOr<Session> open(const ConfigParser& parser, const RunOptions& run, const HsiOptions& options,
                                      const Placement& placement);

  const Scene& scene() const { return scene_; }
  const Feed& feed() const { return *feed_; }
  const HsiOptions& options() const { return options_; }
  HsiModelOptions model() const { return model_options(options_, feed_->bands(), scene_.num_classes()); }

  /// The split of a run; one that goes on takes the split.json that it has written, and the first rank writes it.
  absl::StatusOr<Split> split(const RunOptions& run, const Placement& placement) const;
  double leak(const Split& split) const;

  /// Class 0 .. C-1 of each of `pixels` (n), -1 where there is none.
  at::Tensor labels_of(const at::Tensor& pixels) const;
  std::shared_ptr<const Dataset> rows(const at::Tensor& pixels, bool augment) const;

  /// Cross-entropy, with the share of patches that are right as "oa", all on the device. Keeps this session's feed.
  LossFunction loss() const;

  /// What a step on patches of `pixels` is made of, as one device sees it; a scene that is there stays there.
  StepRecipe recipe(const RunOptions& run, const Placement& placement, const at::Tensor& pixels) const;

  /// "scene ..." and "split ..." for the first lines of a run, with line ends.
  std::string describe(const Split& split) const;

 private:
  Session(HsiOptions options, Scene scene, std::shared_ptr<const Feed> feed, std::string prepared)
      : options_(std::move(options)),
        scene_(std::move(scene)),
        feed_(std::move(feed)),
        prepared_(std::move(prepared)) {}
  HsiOptions options_;
  Scene scene_;
  std::shared_ptr<const Feed> feed_;
  std::string prepared_;  // what was done to the cube, in words
};

/// AdamW with the flags' settings, without parameters.
std::unique_ptr<Optimizer> make_optimizer(const RunOptions& run, int64_t replicas);

/// --make_demo_data: writes a scene of Indian Pines' size into `folder`, which is made if it is missing.
absl::StatusOr<int> write_demo_data(const std::string& folder, uint64_t seed);

}  // namespace trainkit::hsi
