#include "gpt2_recommender/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "gpt2_recommender/ratings.h"
#include "trainkit/config/option_group.h"

namespace trainkit::rec {
namespace {

constexpr int64_t kMostPlanned = 1 << 24;

void add_interaction_flags(ConfigParser& parser, RecOptions& options) {
  const OptionGroup add(parser, "Interactions");
  add("data_format", &options.data_format,
      {.help = "Whose files are in --data_dir: MovieLens 1M (ratings.dat), 100k (u.data) or RecBole (one .inter).",
       .choices = ratings_formats()});
  add("min_rating", &options.min_rating, {.help = "A lower rating is no interaction; 0: all are.", .min = 0});
  add("k_core", &options.k_core,
      {.help = "Leave out users and items with fewer interactions, until there are none; 0 keeps all.",
       .min = 0,
       .max = 1 << 20});
  add("split", &options.split,
      {.help = "ratio: a tenth of each user's interactions at random for the test, a tenth for validation; "
               "leave_one_out: the last in time, and the one before; or a split.tsv of another run.",
       .path = PathKind::kInput,
       .path_words = {"ratio", "leave_one_out"},
       .metavar = "ratio|leave_one_out|FILE"});
  add("negatives", &options.negatives,
      {.help =
           "How items that a user did not choose are drawn; in_batch: other rows' positives, of the same micro-batch.",
       .choices = {"uniform", "popularity", "in_batch"}});
  add("draw", &options.draw,
      {.help = "Where negatives are drawn: by the loader's workers, or on the device, in the step; auto: on a GPU. The "
               "same negatives from both.",
       .choices = {"auto", "loader", "device"}});
  add("plan_data", &options.plan_data,
      {.help = "With --dry_run, instead of --data_dir: made-up data of so many users, items and ratings; MovieLens 1M "
               "is 6040x3706x1000209.",
       .metavar = "USERSxITEMSxRATINGS",
       .flag_only = true});
}

void add_model_flags(ConfigParser& parser, RecOptions& options) {
  const OptionGroup add(parser, "Model");
  add("model", &options.model,
      {.help = "gpt2: embeddings, GPT-2 over what is known of users and items, and a perceptron; bpr_mf: matrix "
               "factorisation.",
       .choices = {"gpt2", "bpr_mf"}});
  add("embed_dim", &options.embed_dim, {.help = "Length of a user's and an item's vector.", .min = 1, .max = 4096});
}

void add_gpt2_flags(ConfigParser& parser, RecOptions& options) {
  const OptionGroup add(parser, "GPT-2");
  add("gpt2", &options.gpt2,
      {.help = "A folder as Hugging Face saves GPT-2 (config.json and weights); without it a small one, random.",
       .path = PathKind::kInput});
  add("vocab", &options.vocab,
      {.help = "Folder of GPT-2's vocabulary (vocab.json and merges.txt); without it that of --gpt2, else characters.",
       .path = PathKind::kInput});
  add("n_layer", &options.n_layer, {.help = "Layers of a random GPT-2.", .min = 1, .max = 1000});
  add("n_head", &options.n_head, {.help = "Its heads, which divide n_embd.", .min = 1, .max = 1000});
  add("n_embd", &options.n_embd, {.help = "Its width.", .min = 1, .max = 1 << 16});
  add("vocab_size", &options.vocab_size,
      {.help = "Its kinds of tokens; 0: those of the vocabulary.", .min = 0, .max = 1 << 24});
  add("max_tokens", &options.max_tokens, {.help = "Tokens of a text that are read.", .min = 1, .max = 1024});
  add("freeze_gpt2", &options.freeze_gpt2, {.help = "Do not train GPT-2."});
  add("use_cache", &options.use_cache,
      {.help = "Keep what GPT-2 makes of each text on each device instead of computing it in every step; without it "
               "wherever GPT-2 is not trained."});
  add("lora_rank", &options.lora_rank,
      {.help = "Train adapters of this rank beside GPT-2's frozen weights; 0: none.", .min = 0, .max = 4096});
  add("lora_alpha", &options.lora_alpha,
      {.help = "The adapters' output is multiplied by this over the rank.", .above = 0});
  add("lora_targets", &options.lora_targets, {.help = "Layers with an adapter: c_attn, c_fc, c_proj, mlp.c_proj, ..."});
  add("merge_lora", &options.merge_lora,
      {.help = "At the end, write GPT-2 with the best adapters added to its weights into <output_dir>/merged."});
}

void add_ranking_flags(ConfigParser& parser, RecOptions& options) {
  const OptionGroup add(parser, "Ranking");
  add("topk", &options.topk,
      {.help = "Lengths of the lists that are scored; 10, by which a run is judged, is always among them.",
       .min = 1,
       .max = 1000,
       .unique_items = true});
  add("sampled_negatives", &options.sampled_negatives,
      {.help = "Rank a user's items against so many others, drawn once; 0: against all. Figures do not compare.",
       .min = 0,
       .max = 1 << 20});
  add("sampled_for", &options.sampled_for,
      {.help = "Whether --sampled_negatives are so many for each positive, as RecBole's uni100, or for each user.",
       .choices = {"positive", "user"}});
}

absl::Status check_model(const ConfigParser& parser, const RecOptions& options) {
  if (options.model != "gpt2") return absl::OkStatus();
  if (options.use_cache.value_or(false) && !options.is_frozen()) {
    return parser.invalid("use_cache", "GPT-2 changes in every step, and what was kept would be stale",
                          "a frozen GPT-2", "--freeze_gpt2 without adapters, or --no-use_cache");
  }
  if (options.merge_lora && options.lora_rank == 0) {
    return parser.invalid("merge_lora", "there are no adapters to merge", "--lora_rank of 1 or more");
  }
  if (options.gpt2.empty() && options.n_embd % options.n_head != 0) {
    return parser.invalid("n_head", "does not divide n_embd", fmt::format("a divisor of {}", options.n_embd));
  }
  return absl::OkStatus();
}

}  // namespace

void set_run_defaults(RunOptions& run) {
  run.output_dir = "runs/gpt2rec";
  run.epochs = 300;
  run.global_batch_size = 2048;
  run.batch_size = {2048};
  run.lr = 1e-3;
  run.weight_decay = 0;
  run.grad_clip = 0;
  run.scheduler = "constant";
  run.early_stopping = 10;
  run.log_every = 100;
  run.drop_last = false;
  run.cuda_graph = "auto";
}

void add_rec_flags(ConfigParser& parser, RecOptions& options) {
  add_interaction_flags(parser, options);
  add_model_flags(parser, options);
  add_gpt2_flags(parser, options);
  add_ranking_flags(parser, options);
}

// Source: the table of recommended settings of the guide on memory: over 8 GiB a device, 4 to 8, under 4.
void add_rec_presets(ConfigParser& parser) {
  parser.add_preset("over_8gib", {{"global_batch_size", "2048"}, {"use_cache", "true"}, {"parallel", "8"}},
                    "8 devices of more than 8 GiB");
  parser.add_preset("4_to_8gib", {{"global_batch_size", "1024"}, {"use_cache", "true"}, {"parallel", "4"}},
                    "4 devices of 4 to 8 GiB");
  parser.add_preset("under_4gib", {{"global_batch_size", "512"}, {"use_cache", "false"}, {"parallel", "2"}},
                    "2 devices of less than 4 GiB");
  parser.add_preset("gpt2_small",
                    {{"n_layer", "12"},
                     {"n_head", "12"},
                     {"n_embd", "768"},
                     {"vocab_size", "50257"},
                     {"embed_dim", "64"},
                     {"global_batch_size", "2048"},
                     {"use_cache", "true"},
                     {"parallel", "8"}},
                    "the guide's example: GPT-2 small (of random weights without --gpt2), 8 devices");
}

std::string share_global_batch(const ConfigParser& parser, RunOptions& run, int64_t replicas) {
  const auto given = [&](const char* name) { return parser.is_given(name); };
  // Nothing, as a configuration that a run has written may say, is rows per device.
  if (run.batch_size.is_auto() || !run.global_batch_size) return {};
  if (!given("global_batch_size")) {
    if (given("batch_size")) {
      run.global_batch_size.reset();  // rows per device, as in every trainer
      return {};
    }
    if (given("grad_accum_steps")) *run.global_batch_size *= run.grad_accum_steps;
  }
  const int64_t steps = given("grad_accum_steps") ? run.grad_accum_steps : 1;
  const int64_t wanted = *run.global_batch_size;
  const int64_t per_device = std::max<int64_t>(1, wanted / (replicas * steps));
  if (!given("batch_size")) run.batch_size = {per_device};
  run.global_batch_size = per_device * replicas * steps;
  if (*run.global_batch_size == wanted) return {};
  return fmt::format("batch      {} rows a step are {} on each of {} devices{}: {} {} by rounding\n", wanted,
                     per_device, replicas, steps > 1 ? fmt::format(" and {} steps", steps) : "",
                     std::abs(wanted - *run.global_batch_size), wanted > *run.global_batch_size ? "lost" : "won");
}

absl::Status check_rec_options(const ConfigParser& parser, const RunOptions& run, const RecOptions& options) {
  if (!options.plan_data.empty()) {
    if (!run.dry_run || !run.data_dir.empty()) {
      return parser.invalid("plan_data", "stands for --data_dir in a dry run", "--dry_run, and no --data_dir");
    }
    return parse_plan_data(options.plan_data) ? check_model(parser, options)
                                              : parser.invalid("plan_data", "not a size of data",
                                                               "USERSxITEMSxRATINGS, as 6040x3706x1000209: two of each "
                                                               "or more, and at most half of the items a user");
  }
  if (run.data_dir.empty()) {
    return parser.invalid("data_dir", "not given", "a folder of ratings",
                          "trainkit-gpt2rec --make_demo_data DIR writes one of each kind");
  }
  if (options.min_rating > 0 && !std::isfinite(options.min_rating)) {
    return parser.invalid("min_rating", "not a number");
  }
  return check_model(parser, options);
}

std::optional<DemoRatingsOptions> parse_plan_data(const std::string& text) {
  DemoRatingsOptions sizes;
  int64_t ratings = 0;
  char end = 0;
  if (std::sscanf(text.c_str(), "%ldx%ldx%ld%c", &sizes.users, &sizes.items, &ratings, &end) != 3) return std::nullopt;
  const bool in_range = sizes.users >= 2 && sizes.users <= kMostPlanned && sizes.items >= 4 &&
                        sizes.items <= kMostPlanned && ratings >= sizes.users &&
                        ratings <= sizes.users * (sizes.items / 2);
  if (!in_range) return std::nullopt;
  sizes.ratings_per_user = (ratings + sizes.users / 2) / sizes.users;
  return sizes;
}

SplitOptions split_options(const RecOptions& options, uint64_t seed) { return {.mode = options.split, .seed = seed}; }

RankingOptions ranking_options(const RecOptions& options, Part part) {
  RankingOptions ranking{.part = part,
                         .ks = options.topk,
                         .sampled_negatives = options.sampled_negatives,
                         .sampled_per_user = options.sampled_for == "user"};
  if (std::find(ranking.ks.begin(), ranking.ks.end(), kMainTopK) == ranking.ks.end()) ranking.ks.push_back(kMainTopK);
  std::sort(ranking.ks.begin(), ranking.ks.end());
  return ranking;
}

Negatives negatives_of(const RecOptions& options) {
  return options.negatives == "popularity" ? Negatives::kPopularity : Negatives::kUniform;
}

}  // namespace trainkit::rec
