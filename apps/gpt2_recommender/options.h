#pragma once
/// The settings that are this trainer's own; those of every trainer are in trainkit/app/run_options.h.

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

/// One member per flag, under the flag's name.
struct RecOptions {
  // Interactions
  /// See ratings_formats().
  std::string data_format = "auto";
  double min_rating = 0;
  int64_t k_core = 0;
  /// ratio, leave_one_out, or a split file.
  std::string split = "ratio";
  /// uniform, popularity or in_batch.
  std::string negatives = "uniform";
  /// Where negatives are drawn: auto, loader or device.
  std::string draw = "auto";

  /// With --dry_run in place of --data_dir: "USERSxITEMSxRATINGS" of made-up data.
  std::string plan_data = {};

  // Model
  /// bpr_mf or gpt2.
  std::string model = "gpt2";
  int64_t embed_dim = 64;

  // GPT-2
  /// Folder of a pretrained GPT-2; empty: random weights of the sizes below.
  std::string gpt2 = {};
  /// Folder of GPT-2's vocabulary; empty: that of `gpt2`, else single characters.
  std::string vocab = {};
  int64_t n_layer = 2;
  int64_t n_head = 2;
  int64_t n_embd = 64;
  /// 0: as many as the tokenizer has.
  int64_t vocab_size = 0;
  int64_t max_tokens = 32;
  bool freeze_gpt2 = true;
  /// Unset: wherever GPT-2 is not trained.
  std::optional<bool> use_cache = {};
  /// 0: no adapters.
  int64_t lora_rank = 0;
  double lora_alpha = 16;
  std::vector<std::string> lora_targets = {"c_attn"};
  /// At the end, write GPT-2 with the best adapters in its weights.
  bool merge_lora = false;

  /// Whether the encoder stays as it is for the whole run, and whether its output is kept.
  bool is_frozen() const { return freeze_gpt2 && lora_rank == 0; }
  bool is_cached() const { return use_cache.value_or(is_frozen()); }

  // Ranking
  std::vector<int64_t> topk = {5, 10, 20};
  /// Items that a user's positives compete with; 0: all. So many for each positive, or for each user.
  int64_t sampled_negatives = 0;
  std::string sampled_for = "positive";
};

/// The length of list that a run is judged by: early stopping, the best epoch, the scores of summary.json.
inline constexpr int64_t kMainTopK = 10;

/// The defaults of `run` that this trainer changes; to be called before add_run_flags.
void set_run_defaults(RunOptions& run);

/// Adds every flag of RecOptions. The presets by memory of a GPU (add_rec_presets) come when all flags are there.
void add_rec_flags(ConfigParser& parser, RecOptions& options);

void add_rec_presets(ConfigParser& parser);

/// Shares the rows of a step among `replicas` devices, max(1, global / replicas) each, as one micro-batch: 2048 rows
/// where nobody says otherwise. Returns what is to be told of rows that are lost by rounding; empty if none is.
std::string share_global_batch(const ConfigParser& parser, RunOptions& run, int64_t replicas);

/// Rules between the flags. Errors are blamed on where the value came from.
absl::Status check_rec_options(const ConfigParser& parser, const RunOptions& run, const RecOptions& options);

/// The sizes of --plan_data, whose users have at most half of the items each; nullopt for what is none.
std::optional<DemoRatingsOptions> parse_plan_data(const std::string& text);

SplitOptions split_options(const RecOptions& options, uint64_t seed);
RankingOptions ranking_options(const RecOptions& options, Part part);
Negatives negatives_of(const RecOptions& options);

}  // namespace trainkit::rec
