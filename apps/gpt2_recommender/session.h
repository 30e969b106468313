#pragma once
/// A data set made ready for training: its interactions, their split, and what scores a model.

#include <absl/status/statusor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpt2_recommender/device_triplets.h"
#include "gpt2_recommender/interactions.h"
#include "gpt2_recommender/metadata.h"
#include "gpt2_recommender/models.h"
#include "gpt2_recommender/options.h"
#include "gpt2_recommender/ranking.h"
#include "gpt2_recommender/triplets.h"
#include "trainkit/app/placement.h"
#include "trainkit/train/loss.h"
#include "trainkit/train/step_memory.h"

namespace trainkit::rec {

/// Triplets of a part, and where they are made.
struct TripletFeed {
  std::shared_ptr<const TripletDataset> triplets = nullptr;
  /// nullptr: the loader's workers make them.
  std::shared_ptr<const DeviceTriplets> on_device = nullptr;

  /// What a loader reads.
  std::shared_ptr<const Dataset> rows() const {
    return on_device ? on_device->rows() : std::static_pointer_cast<const Dataset>(triplets);
  }
};

class Session {
 public:
  /// Reads --data_dir, leaves out what is to be left out, and splits; a run that goes on takes the split.tsv that it
  /// has written, and the first rank writes it. For --model gpt2 the texts are tokenised. Errors: those of
  /// read_ratings, filter_ratings, make_split, Ranking::create, metadata_tokenizer and parse_gpt2_config.
  static absl::StatusOr<Session> open(const RunOptions& run, const RecOptions& options, const Placement& placement);

  const Interactions& interactions() const { return interactions_; }
  const Split& split() const { return split_; }
  const RecOptions& options() const { return options_; }
  const Ranking& validation() const { return validation_; }
  const Ranking& test() const { return test_; }

  /// Triplets of training or validation. Errors: those of TripletDataset::create.
  absl::StatusOr<std::shared_ptr<const TripletDataset>> triplets(Part part) const;

  /// The same by --draw, for these devices.
  absl::StatusOr<TripletFeed> feed(Part part, const RunOptions& run, const Placement& placement) const;

  /// A new model, for one replica. Throws absl::BadStatusOrAccess with the Error of load_gpt2 and apply_lora.
  std::shared_ptr<Recommender> create_model() const { return create_model(options_); }
  /// The same with other sizes or another mode.
  std::shared_ptr<Recommender> create_model(const RecOptions& options) const;

  /// The BPR loss of a batch of `feed` (or of its triplets) under a model of create_model, on any of `devices`; with
  /// --negatives in_batch its history says what may be a negative.
  LossFunction loss(const TripletFeed& feed, const std::vector<at::Device>& devices) const;

  /// What a step is made of, as one device sees it, to plan its memory: each row of other users and items than the
  /// others, since that takes the most. Valid as long as this session.
  StepRecipe recipe(const RunOptions& run, const Placement& placement, const TripletFeed& feed) const;
  /// What else is on a device: texts to be read, who chose what for in-batch negatives.
  int64_t device_tables_bytes(const RecOptions& options) const;

  /// "data ..." and what a person should know of it, for the first lines of a run, with line ends.
  std::string describe() const;

 private:
  Session(RecOptions options, Ratings ratings, Interactions interactions, Split split, Ranking validation, Ranking test,
          std::shared_ptr<const Metadata> metadata)
      : options_(std::move(options)),
        ratings_(std::move(ratings)),
        interactions_(std::move(interactions)),
        split_(std::move(split)),
        validation_(std::move(validation)),
        test_(std::move(test)),
        metadata_(std::move(metadata)) {}
  RecOptions options_;
  Ratings ratings_;
  Interactions interactions_;
  Split split_;
  Ranking validation_, test_;
  std::shared_ptr<const Metadata> metadata_;  // nullptr for bpr_mf
};

/// Adam with the flags' settings, without parameters.
std::unique_ptr<Optimizer> make_optimizer(const RunOptions& run, int64_t replicas);

/// Gives up the caches of GPT-2's output on all of these devices: dynamic mode from here on, with the same loss. False
/// if there is none to give up.
bool leave_cache_mode(DeviceReplicator& devices);

/// --make_demo_data: a data set in each of the formats, in folders of their names.
absl::StatusOr<int> write_demo_data(const std::string& folder, uint64_t seed);

}  // namespace trainkit::rec
