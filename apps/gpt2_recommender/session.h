#pragma once
/// Prepares a data set for training: interactions, split, texts and rankings.

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
#include "gpt2_recommender/ranking_test.h"
#include "gpt2_recommender/triplets.h"
#include "trainkit/app/placement.h"
#include "trainkit/report/summary.h"
#include "trainkit/train/loss.h"
#include "trainkit/train/step_memory.h"

namespace trainkit::rec {

/// Triplets of a part, and the place where they are made.
struct TripletFeed {
  std::shared_ptr<const TripletDataset> triplets = nullptr;
  /// nullptr if the loader's workers make the triplets.
  std::shared_ptr<const DeviceTriplets> on_device = nullptr;

  /// Data set for the loader.
  std::shared_ptr<const Dataset> rows() const {
    return on_device ? on_device->rows() : std::static_pointer_cast<const Dataset>(triplets);
  }
};

/// Holds the data of a run and makes its models, losses and feeds.
class Session {
 public:
  /// Reads --data_dir, filters and splits the ratings; a resumed run reads its split.tsv instead of
  /// splitting. Tokenises the texts for --model gpt2. Errors: those of read_ratings, filter_ratings, make_split,
  /// Ranking::create, metadata_tokenizer and parse_gpt2_config.
  static absl::StatusOr<Session> open(const RunOptions& run, const RecOptions& options);

  const Interactions& interactions() const { return interactions_; }
  const RecOptions& options() const { return options_; }
  /// Sets the optimizer that was chosen for the data.
  void set_optimizer(const std::string& optimizer) { options_.optimizer = optimizer; }
  const Ranking& validation() const { return validation_; }
  const std::shared_ptr<RankingTest>& test() const { return test_; }

  /// Returns the triplets of the training or validation part. Errors: those of TripletDataset::create.
  absl::StatusOr<std::shared_ptr<const TripletDataset>> triplets(Part part) const;

  /// Returns the triplets of a part, made where --draw says, for the devices of `placement`.
  absl::StatusOr<TripletFeed> feed(Part part, const RunOptions& run, const Placement& placement) const;

  /// Makes a new model for one replica. Throws absl::BadStatusOrAccess with the Error of load_gpt2 or apply_lora.
  std::shared_ptr<Recommender> create_model() const { return create_model(options_); }
  /// Makes a model with other sizes or another mode.
  std::shared_ptr<Recommender> create_model(const RecOptions& options) const;

  /// Writes catalog.json, split.tsv and its index into the run's folder, so that the run can be used without the data
  /// set. Errors: exit code 6.
  absl::Status save(const RunOptions& run) const;

  /// Returns the BPR loss for batches of `feed` (or of its triplets) and models of create_model, on any of `devices`.
  /// With --negatives in_batch it also copies the history, which excludes known positives, to each device.
  LossFunction loss(const TripletFeed& feed, const std::vector<at::Device>& devices) const;

  /// Describes a step on one device, to plan its memory. All rows have different users and items, the case that takes
  /// the most memory. Valid as long as this session.
  StepRecipe recipe(const Placement& placement, const TripletFeed& feed) const;
  /// Bytes of further tables on a device: token ids in dynamic mode, and the history for in-batch negatives.
  int64_t device_tables_bytes(const RecOptions& options) const;

  /// Describes the data, the protocol and notes about them.
  RunFacts describe() const;

 private:
  Session(RecOptions options, Ratings ratings, Interactions interactions, Split split, SplitItems items,
          Ranking validation, std::shared_ptr<RankingTest> test, std::shared_ptr<const Metadata> metadata)
      : options_(std::move(options)),
        ratings_(std::move(ratings)),
        interactions_(std::move(interactions)),
        split_(std::move(split)),
        items_(std::move(items)),
        validation_(std::move(validation)),
        test_(std::move(test)),
        metadata_(std::move(metadata)) {}
  RecOptions options_;
  Ratings ratings_;
  Interactions interactions_;
  Split split_;
  SplitItems items_;
  Ranking validation_;
  std::shared_ptr<RankingTest> test_;
  std::shared_ptr<const Metadata> metadata_;  // nullptr for bpr_mf
};

/// Tokenises the texts of users and items for --model gpt2; nullptr for bpr_mf. Errors: those of metadata_tokenizer.
absl::StatusOr<std::shared_ptr<const Metadata>> read_metadata(const RecOptions& options,
                                                              const Interactions& interactions);

/// Makes the model of the flags for these users and items, see Session::create_model.
std::shared_ptr<Recommender> make_recommender(const RecOptions& options, const Interactions& interactions,
                                              const std::shared_ptr<const Metadata>& metadata);

/// Makes the optimizer of the flags with the parameters of `model`. With AdamW and an embedding decay the vectors of
/// users and items are a group with that weight decay.
std::unique_ptr<Optimizer> make_optimizer(const RunOptions& run, int64_t replicas, const RecOptions& options,
                                          const torch::nn::Module& model);

/// Frees the caches of GPT-2's output on all devices and switches to dynamic mode, which gives the same loss. Returns
/// false if no model has a cache.
bool leave_cache_mode(DeviceReplicator& devices);

}  // namespace trainkit::rec
