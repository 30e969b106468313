#include "gpt2_recommender/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "gpt2_recommender/ratings.h"

namespace trainkit {
namespace {

template <class T>
void add_to(ConfigParser& parser, const char* group, const char* name, T* variable, OptionSpec spec) {
  spec.group = group;
  parser.add(name, variable, std::move(spec));
}

void add_interaction_flags(ConfigParser& parser, RecOptions& options) {
  const auto add = [&](const char* name, auto* variable, OptionSpec spec) {
    add_to(parser, "Interactions", name, variable, std::move(spec));
  };
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
}

void add_model_flags(ConfigParser& parser, RecOptions& options) {
  const auto add = [&](const char* name, auto* variable, OptionSpec spec) {
    add_to(parser, "Model", name, variable, std::move(spec));
  };
  add("model", &options.model, {.help = "bpr_mf: matrix factorisation.", .choices = {"bpr_mf"}});
  add("embed_dim", &options.embed_dim, {.help = "Length of a user's and an item's vector.", .min = 1, .max = 4096});
}

void add_ranking_flags(ConfigParser& parser, RecOptions& options) {
  const auto add = [&](const char* name, auto* variable, OptionSpec spec) {
    add_to(parser, "Ranking", name, variable, std::move(spec));
  };
  add("topk", &options.topk,
      {.help = "Lengths of the lists that are scored; 10, by which a run is judged, is always among them.",
       .min = 1,
       .max = 1000,
       .unique_items = true});
  add("sampled_negatives", &options.sampled_negatives,
      {.help = "Rank a user's items against so many others, drawn once; 0: against all. Figures do not compare.",
       .min = 0,
       .max = 1 << 24});
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
}

void add_rec_flags(ConfigParser& parser, RecOptions& options) {
  add_interaction_flags(parser, options);
  add_model_flags(parser, options);
  add_ranking_flags(parser, options);
}

Settings device_defaults(bool) { return {}; }

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
  if (run.data_dir.empty()) {
    return parser.invalid("data_dir", "not given", "a folder of ratings",
                          "trainkit-gpt2rec --make_demo_data DIR writes one of each kind");
  }
  if (options.min_rating > 0 && !std::isfinite(options.min_rating)) {
    return parser.invalid("min_rating", "not a number");
  }
  return absl::OkStatus();
}

SplitOptions split_options(const RecOptions& options, uint64_t seed) { return {.mode = options.split, .seed = seed}; }

RankingOptions ranking_options(const RecOptions& options, Part part) {
  RankingOptions ranking{.part = part, .ks = options.topk, .sampled_negatives = options.sampled_negatives};
  if (std::find(ranking.ks.begin(), ranking.ks.end(), kMainTopK) == ranking.ks.end()) ranking.ks.push_back(kMainTopK);
  std::sort(ranking.ks.begin(), ranking.ks.end());
  return ranking;
}

Negatives negatives_of(const RecOptions& options) {
  return options.negatives == "popularity" ? Negatives::kPopularity : Negatives::kUniform;
}

}  // namespace trainkit
