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
#include "trainkit/app/run_options.h"
#include "trainkit/config/config.h"

namespace trainkit::rec {

/// Values of the flags; each member has the name of its flag.
struct RecOptions {
  // Interactions
  /// See ratings_formats().
  std::string data_format = "auto";
  double min_rating = 0;
  int64_t k_core = 0;
  /// ratio, leave_one_out, or the path of a split file.
  std::string split = "ratio";
  /// uniform, popularity or in_batch.
  std::string negatives = "uniform";
  /// Place where negatives are drawn: auto, loader or device.
  std::string draw = "auto";

  /// Size of generated data, "USERSxITEMSxRATINGS". Replaces --data_dir in a dry run.
  std::string plan_data = {};

  // Model
  /// bpr_mf or gpt2.
  std::string model = "gpt2";
  int64_t embed_dim = 64;

  // GPT-2
  /// Folder of a pretrained GPT-2. Empty: random weights with the sizes below.
  std::string gpt2 = {};
  /// Folder of GPT-2's vocabulary. Empty: the folder `gpt2`, or single characters without it.
  std::string vocab = {};
  int64_t n_layer = 2;
  int64_t n_head = 2;
  int64_t n_embd = 64;
  /// Vocabulary size. 0: that of the tokenizer.
  int64_t vocab_size = 0;
  int64_t max_tokens = 32;
  bool freeze_gpt2 = true;
  /// Unset: true if GPT-2 is not trained.
  std::optional<bool> use_cache = {};
  /// Rank of the LoRA adapters. 0: no adapters.
  int64_t lora_rank = 0;
  double lora_alpha = 16;
  std::vector<std::string> lora_targets = {"c_attn"};
  /// Write GPT-2 with the best adapters merged into its weights at the end.
  bool merge_lora = false;

  /// Whether GPT-2, with its adapters, stays constant for the whole run.
  bool is_frozen() const { return freeze_gpt2 && lora_rank == 0; }
  /// Whether its output is cached.
  bool is_cached() const { return use_cache.value_or(is_frozen()); }

  // Ranking
  std::vector<int64_t> topk = {5, 10, 20};
  /// Sampled items that a user's positives are ranked against, per positive or per user (`sampled_for`). 0: all items.
  int64_t sampled_negatives = 0;
  std::string sampled_for = "positive";
};

/// List length used for early stopping, the best epoch and the scores of summary.json.
inline constexpr int64_t kMainTopK = 10;

/// Sets this trainer's defaults of `run`. Call it before add_run_flags.
void set_run_defaults(RunOptions& run);

/// Adds every flag of RecOptions.
void add_rec_flags(ConfigParser& parser, RecOptions& options);

/// Adds the presets by GPU memory. Call it after all flags were added.
void add_rec_presets(ConfigParser& parser);

/// Divides the global batch (default 2048 rows) among `replicas` devices: max(1, global / replicas) rows each, as one
/// micro-batch. Returns a sentence that reports rows added or dropped by rounding; empty if there are none.
std::string share_global_batch(const ConfigParser& parser, RunOptions& run, int64_t replicas);

/// Checks the rules between the flags. An error names the source of the value (flag, file, preset).
absl::Status check_rec_options(const ConfigParser& parser, const RunOptions& run, const RecOptions& options);

/// Parses --plan_data. Returns nullopt for an invalid size, also if users would need more than half of the items each.
std::optional<DemoRatingsOptions> parse_plan_data(const std::string& text);

// Options of the parts, from the flags.
SplitOptions split_options(const RecOptions& options, uint64_t seed);
RankingOptions ranking_options(const RecOptions& options, Part part);
Negatives negatives_of(const RecOptions& options);

}  // namespace trainkit::rec
