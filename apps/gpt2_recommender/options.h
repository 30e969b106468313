#pragma once
/// Declares this trainer's own settings. Settings of every trainer are in trainkit/app/run_options.h.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gpt2_recommender/interactions.h"
#include "gpt2_recommender/ranking.h"
#include "gpt2_recommender/ratings.h"
#include "gpt2_recommender/triplets.h"
#include "trainkit/app/plan.h"
#include "trainkit/app/run_options.h"
#include "trainkit/config/config.h"
#include "trainkit/nn/gpt2.h"
#include "trainkit/nn/lora.h"

namespace trainkit::rec {

/// Values of the flags. Those of a part are in the part's own options, which ratings_options, filter_options and
/// ranking_options complete.
struct RecOptions {
  /// validation, test: tables of these parts; --data_dir is that of training.
  RatingsOptions ratings = {};
  /// auto, tab, or one character.
  std::string csv_delimiter = "auto";
  /// auto, error, count or deduplicate.
  std::string repeated_events = "auto";
  FilterOptions filter = {};
  SplitOptions split = {};
  /// uniform, popularity or in_batch.
  std::string negatives = "uniform";
  /// Place where negatives are drawn: auto, loader or device.
  std::string draw = "auto";

  /// Size of generated data, "USERSxITEMSxRATINGS". Replaces --data_dir in a dry run.
  std::string plan_data = {};

  /// bpr_mf or gpt2.
  std::string model = "gpt2";
  int64_t embed_dim = 64;

  /// Folder of a pretrained GPT-2. Empty: random weights with these sizes.
  std::string gpt2 = {};
  /// vocab_size 0: that of the tokenizer. n_positions: tokens of a text.
  GPT2Config sizes = {.vocab_size = 0, .n_positions = 32, .n_embd = 64, .n_layer = 2, .n_head = 2};
  /// Folder of GPT-2's vocabulary. Empty: the folder `gpt2`, or single characters without it.
  std::string vocab = {};
  bool freeze_gpt2 = true;
  /// Unset: true if GPT-2 is not trained.
  std::optional<bool> use_cache = {};
  /// Rank 0: no adapters.
  LoRAConfig lora = {.rank = 0, .alpha = 16};
  /// Write GPT-2 with the best adapters merged into its weights at the end.
  bool merge_lora = false;

  /// Whether GPT-2, with its adapters, stays constant for the whole run.
  bool is_frozen() const { return freeze_gpt2 && lora.rank == 0; }
  /// Whether its output is cached.
  bool is_cached() const { return use_cache.value_or(is_frozen()); }

  /// auto, adamw or sparse_adam. choose_optimizer replaces auto.
  std::string optimizer = "auto";
  /// Whether the vectors of users and items have sparse gradients.
  bool is_sparse() const { return optimizer == "sparse_adam"; }

  /// Weight decay of the vectors of users and items. Unset: that of RunOptions::weight_decay.
  std::optional<double> embedding_decay = {};

  RankingOptions ranking = {};
  /// Whether ranking.sampled_negatives is the number per "positive" or per "user".
  std::string sampled_for = "positive";
  /// Files with the items to rank against, instead of sampled ones; see read_negatives.
  std::string validation_negatives = {}, test_negatives = {};
  /// Score for early stopping and the best epoch: NAME@K.
  std::string metric = "ndcg@10";
};

/// List length that is always scored, for the scores of summary.json.
inline constexpr int64_t kMainTopK = 10;

/// Fewest steps of an epoch that the default batch gives.
inline constexpr int64_t kLeastSteps = 20;

/// Sets this trainer's defaults of `run`. Call it before add_run_flags.
void set_run_defaults(RunOptions& run);

/// Adds every flag of RecOptions.
void add_rec_flags(ConfigParser& parser, RecOptions& options);

/// A preset by the memory of a device.
struct MemoryPreset {
  /// Name of the preset, such as "4_to_8gib", and the memory of a device in words.
  const char* name = "";
  const char* memory = "";
  int64_t global_batch_size = 0;
  bool use_cache = false;
  int64_t devices = 0;
};

/// Returns the preset for the memory of one device:
///   over_8gib   more than 8 GiB       2048 rows, with a cache, 8 devices
///   4_to_8gib   4 to 8 GiB inclusive  1024 rows, with a cache, 4 devices
///   under_4gib  less than 4 GiB        512 rows, without a cache, 2 devices
const MemoryPreset& preset_for_memory(int64_t device_bytes);

/// Adds these presets and that of GPT-2 small. Call it after all flags were added.
void add_rec_presets(ConfigParser& parser);

/// Returns the example of the reference guide (docs/guides.md): GPT-2 small with the users and items of MovieLens 1M,
/// with the preset for `device_bytes`, or for 24 GiB if that is 0. A preset that was given by name stays.
PlanExample plan_example(const ConfigParser& parser, int64_t device_bytes);

/// Divides the global batch (default 2048 rows) among `replicas` devices: max(1, global / replicas) rows each, as one
/// micro-batch. Returns a sentence that reports rows added or dropped by rounding; empty if there are none.
std::string share_global_batch(const ConfigParser& parser, RunOptions& run, int64_t replicas);

/// Reduces the default global batch to the largest power of two with which `rows` training rows give kLeastSteps steps
/// per epoch. Returns a sentence with the batch and the reason; empty if nothing changed. A batch that was given stays,
/// as does that of a resumed run.
std::string fit_default_batch(const ConfigParser& parser, RunOptions& run, int64_t replicas, int64_t rows);

/// Users and items above which --optimizer auto is SparseAdam. Its steps are cheaper from MovieLens 1M's size on
/// (9,746), but AdamW's weight decay ranks better on MovieLens 100k, so its steps are kept until they take several
/// times as long.
inline constexpr int64_t kSparseVectors = 50'000;

/// Replaces --optimizer auto: by sparse_adam on the CPU for more than kSparseVectors users and items, unless a weight
/// decay or --shard was given; otherwise by adamw. Returns a sentence with the reason for sparse_adam; empty for adamw.
/// A resumed run keeps its optimizer.
std::string choose_optimizer(const RunOptions& run, RecOptions& options, bool on_cpu, int64_t vectors);

/// Chooses --embedding_decay and --early_stopping by the number of training rows, as far as neither they nor
/// --weight_decay were given: a decay of min(1, 100 / sqrt(rows)), and a patience of 40 evaluations for data with which
/// fit_default_batch reduces the batch. SparseAdam has no decay. Returns a sentence with the values; empty if none was
/// chosen. A resumed run keeps its values.
std::string fit_regularisation(const ConfigParser& parser, RunOptions& run, RecOptions& options, int64_t rows);

/// Checks the rules between the flags. An error names the source of the value (flag, file, preset).
absl::Status check_rec_options(const ConfigParser& parser, const RunOptions& run, const RecOptions& options);

/// Parses --plan_data. Returns nullopt for an invalid size, also if users would need more than half of the items each.
std::optional<DemoRatingsOptions> parse_plan_data(const std::string& text);

// Options of the parts, from the flags.
RatingsOptions ratings_options(const RecOptions& options);
FilterOptions filter_options(const RecOptions& options);
RankingOptions ranking_options(const RecOptions& options, Part part);
Negatives negatives_of(const RecOptions& options);

}  // namespace trainkit::rec
