#include "gpt2_recommender/options.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_split.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "trainkit/config/config.h"
#include "trainkit/core/status.h"
#include "trainkit/memory/batch_size_planner.h"

namespace trainkit::rec {
namespace {

constexpr int64_t kMostPlanned = 1 << 24;
constexpr int64_t kDefaultBatch = 2048;
constexpr int64_t kPatienceOfFewRows = 40;  // their scores vary more from epoch to epoch

/// Scores of a list, as ranking_scores names them.
const char* const kMetrics[] = {"ndcg", "recall", "hit", "mrr", "precision"};

/// Parses NAME@K. Returns 0 for another name or length.
int64_t length_of(const std::string& metric) {
  const size_t at = metric.find('@');
  const std::string name = metric.substr(0, at), digits = at == metric.npos ? "" : metric.substr(at + 1);
  const bool is_known = std::find(std::begin(kMetrics), std::end(kMetrics), name) != std::end(kMetrics);
  int64_t k = 0;
  const bool is_number = digits.find_first_not_of("0123456789") == digits.npos && absl::SimpleAtoi(digits, &k);
  return is_known && is_number && k <= 1000 ? k : 0;
}

// What a flag needs to have an effect.
OptionNeed tables() { return {"data_format", {"auto", "table"}}; }
OptionNeed gpt2() { return {"model", {"gpt2"}}; }
OptionNeed random_weights() { return {"gpt2", {""}}; }
OptionNeed adapters() { return {"lora_rank", {"0"}, /*excludes=*/true}; }

void add_table_flags(ConfigParser& parser, RecOptions& options) {
  const OptionGroup add(parser, "Tables of interactions", {modes::kTrain});
  add("user_column", &options.user_column,
      {.help =
           "Column of the users in a .csv or .tsv: a name or a number from 1. Default: a usual name such as user_id, "
           "or column 1 of a table without names.",
       .metavar = "NAME|N",
       .needs = {tables()}});
  add("item_column", &options.item_column,
      {.help = "Column of the items. Default: a usual name, or column 2.", .metavar = "NAME|N", .needs = {tables()}});
  add("rating_column", &options.rating_column,
      {.help = "Column of the ratings; none: the table has pairs. Default: a usual name, or column 3 if there is one.",
       .metavar = "NAME|N|none",
       .needs = {tables()}});
  add("time_column", &options.time_column,
      {.help = "Column of the times, seconds or milliseconds since 1970; none: no times. Default: a usual name, or "
               "column 4 if there is one.",
       .metavar = "NAME|N|none",
       .needs = {tables()}});
  add("header", &options.header,
      {.help =
           "Whether line 1 has the names of the columns. auto: yes if a flag names a column, or if it has usual names.",
       .choices = {"auto", "yes", "no"},
       .needs = {tables()}});
  add("csv_delimiter", &options.csv_delimiter,
      {.help = "Field separator: one character, tab, or auto: a comma in a .csv, else a tab.",
       .metavar = "auto|tab|C",
       .needs = {tables()}});
  add("validation_data", &options.validation_data,
      {.help = "Table of the validation part; --data_dir is that of training. Default: --validation_share of the "
               "training part.",
       .path = PathKind::kInput,
       .needs = {tables()}});
  add("test_data", &options.test_data,
      {.help = "Table of the test part, instead of --split.", .path = PathKind::kInput, .needs = {tables()}});
}

void add_interaction_flags(ConfigParser& parser, RecOptions& options) {
  const OptionGroup add(parser, "Interactions", {modes::kTrain});
  add("data_format", &options.data_format,
      {.help =
           "Format of the files in --data_dir: MovieLens 1M (ratings.dat), 100k (u.data), RecBole (one .inter) or a "
           "table (.csv, .tsv).",
       .choices = ratings_formats()});
  add("repeated_events", &options.repeated_events,
      {.help = "Several events of a user with one item. deduplicate: one interaction. count: one interaction, trained "
               "once per event. error: refuse them. auto: deduplicate in tables, else error.",
       .choices = {"auto", "error", "count", "deduplicate"}});
  add("min_rating", &options.min_rating,
      {.help = "Smallest rating that counts as an interaction. 0: all ratings.", .min = 0});
  add("k_core", &options.k_core,
      {.help = "Remove users and items with fewer interactions, repeatedly. 0: keep all.", .min = 0, .max = 1 << 20});
  add("split", &options.split,
      {.help = "ratio: a random tenth of each user's interactions for the test and a tenth for validation. "
               "leave_one_out: the last interaction and the one before. Or the split.tsv of another run.",
       .path = PathKind::kInput,
       .path_words = {"ratio", "leave_one_out"},
       .metavar = "ratio|leave_one_out|FILE"});
  add("validation_share", &options.validation_share,
      {.help = "Share of each user's interactions for validation, with --split ratio or --test_data.",
       .max = 0.8,
       .above = 0});
  add("negatives", &options.negatives,
      {.help = "Distribution of sampled negatives. in_batch: positives of other rows of the same micro-batch.",
       .choices = {"uniform", "popularity", "in_batch"}});
  add("draw", &options.draw,
      {.help = "Place where negatives are drawn: the loader's workers, or the device in the step. auto: a GPU draws on "
               "the device. Both give the same negatives.",
       .choices = {"auto", "loader", "device"}});
  add("plan_data", &options.plan_data,
      {.help = "Size of generated data for a --dry_run without --data_dir. MovieLens 1M has 6040x3706x1000209.",
       .metavar = "USERSxITEMSxRATINGS",
       .flag_only = true,
       .needs = {{"dry_run", {"true"}}}});
}

void add_model_flags(ConfigParser& parser, RecOptions& options) {
  const OptionGroup add(parser, "Model", {modes::kTrain});
  add("model", &options.model,
      {.help = "gpt2: embeddings, GPT-2 over the texts of users and items, and an MLP. bpr_mf: matrix factorisation.",
       .choices = {"gpt2", "bpr_mf"}});
  add("embed_dim", &options.embed_dim, {.help = "Length of the vectors of users and items.", .min = 1, .max = 4096});
  add("embedding_decay", &options.embedding_decay,
      {.help =
           "Weight decay of the vectors of users and items. Default: --weight_decay if given, else 100 / sqrt(training "
           "interactions), at most 1.",
       .min = 0,
       .max = 1000});
}

void add_gpt2_flags(ConfigParser& parser, RecOptions& options) {
  const OptionGroup add(parser, "GPT-2", {modes::kTrain});
  add("gpt2", &options.gpt2,
      {.help =
           "Folder of a pretrained GPT-2 in Hugging Face's layout (config.json and weights). Default: a small GPT-2 "
           "with random weights.",
       .path = PathKind::kInput,
       .modes = {modes::kTrain, modes::kRun},
       .needs = {gpt2()}});
  add("vocab", &options.vocab,
      {.help = "Folder of GPT-2's vocabulary (vocab.json and merges.txt). Default: --gpt2, or characters without it.",
       .path = PathKind::kInput,
       .modes = {modes::kTrain, modes::kRun},
       .needs = {gpt2()}});
  add("n_layer", &options.n_layer,
      {.help = "Number of layers of a GPT-2 with random weights.",
       .min = 1,
       .max = 1000,
       .needs = {gpt2(), random_weights()}});
  add("n_head", &options.n_head,
      {.help = "Number of attention heads; must divide n_embd.",
       .min = 1,
       .max = 1000,
       .needs = {gpt2(), random_weights()}});
  add("n_embd", &options.n_embd,
      {.help = "Width of its hidden states.", .min = 1, .max = 1 << 16, .needs = {gpt2(), random_weights()}});
  add("vocab_size", &options.vocab_size,
      {.help = "Size of its vocabulary. 0: that of the tokenizer.",
       .min = 0,
       .max = 1 << 24,
       .needs = {gpt2(), random_weights()}});
  add("max_tokens", &options.max_tokens,
      {.help = "Number of tokens read from each text.", .min = 1, .max = 1024, .needs = {gpt2()}});
  add("freeze_gpt2", &options.freeze_gpt2, {.help = "Do not train GPT-2.", .needs = {gpt2()}});
  add("use_cache", &options.use_cache,
      {.help =
           "Cache GPT-2's output for each text on each device instead of computing it in every step. Default: on if "
           "GPT-2 is not trained.",
       .modes = {modes::kTrain, modes::kRun},
       .needs = {gpt2()}});
  add("lora_rank", &options.lora_rank,
      {.help = "Rank of LoRA adapters to train; GPT-2's weights stay frozen. 0: no adapters.",
       .min = 0,
       .max = 4096,
       .needs = {gpt2()}});
  add("lora_alpha", &options.lora_alpha,
      {.help = "LoRA scaling: the adapters' output is multiplied by lora_alpha / lora_rank.",
       .above = 0,
       .needs = {gpt2(), adapters()}});
  add("lora_targets", &options.lora_targets,
      {.help = "Layers that get an adapter: c_attn, c_fc, c_proj, mlp.c_proj, ...", .needs = {gpt2(), adapters()}});
  add("merge_lora", &options.merge_lora,
      {.help = "Write GPT-2 with the best adapters merged into its weights to <output_dir>/results/merged at the end.",
       .needs = {gpt2(), adapters()}});
}

void add_ranking_flags(ConfigParser& parser, RecOptions& options) {
  const OptionGroup add(parser, "Ranking", {modes::kTrain});
  add("topk", &options.topk,
      {.help = "Lengths of the scored lists. 10 and that of --metric are always included.",
       .min = 1,
       .max = 1000,
       .unique_items = true});
  add("sampled_negatives", &options.sampled_negatives,
      {.help = "Rank against N sampled items, drawn once; not comparable with full ranking. 0: rank against all items.",
       .min = 0,
       .max = 1 << 20});
  add("sampled_for", &options.sampled_for,
      {.help = "Whether --sampled_negatives is the number per positive, as in RecBole's uni100, or per user.",
       .choices = {"positive", "user"},
       .needs = {{"sampled_negatives", {"0"}, /*excludes=*/true}}});
  add("validation_negatives", &options.validation_negatives,
      {.help = "File with the items to rank against in validation, instead of sampled ones: lines of a user and items.",
       .path = PathKind::kInput});
  add("test_negatives", &options.test_negatives, {.help = "The same for the test.", .path = PathKind::kInput});
  add("metric", &options.metric,
      {.help = "Score for early stopping and the best epoch: ndcg, recall, hit, mrr or precision, at a list length.",
       .metavar = "NAME@K"});
}

absl::Status check_interactions(const ConfigParser& parser, const RecOptions& options) {
  if (options.csv_delimiter != "auto" && options.csv_delimiter != "tab" &&
      (options.csv_delimiter.size() != 1 || options.csv_delimiter == "\"")) {
    return parser.invalid("csv_delimiter", "not a separator", "auto, tab or one character such as ;");
  }
  for (const auto& [flag, column] :
       {std::pair("user_column", &options.user_column), {"item_column", &options.item_column}}) {
    if (*column == "none") return parser.invalid(flag, "a table needs this column", "a name or a number");
  }
  if (!options.validation_data.empty() && options.test_data.empty()) {
    return parser.invalid("validation_data", "given without a test part", "--test_data too");
  }
  if (!options.test_data.empty() && parser.is_given("split")) {
    return parser.invalid("split", "conflicts with --test_data", "one of the two");
  }
  const bool has_share = options.test_data.empty() ? options.split == "ratio" : options.validation_data.empty();
  if (parser.is_given("validation_share") && !has_share) {
    return parser.invalid("validation_share", "the validation part is given in another way",
                          "--split ratio, or --test_data without --validation_data");
  }
  if (length_of(options.metric) == 0) {
    return parser.invalid("metric", "not a score",
                          fmt::format("{} at 1 to 1000, such as hit@10", fmt::join(kMetrics, ", ")));
  }
  return absl::OkStatus();
}

absl::Status check_model(const ConfigParser& parser, const RecOptions& options) {
  if (options.model != "gpt2") return absl::OkStatus();
  if (options.use_cache.value_or(false) && !options.is_frozen()) {
    return parser.invalid("use_cache", "GPT-2 is trained, so a cache of its output would be stale", "a frozen GPT-2",
                          "use --freeze_gpt2 without adapters, or --no-use_cache");
  }
  if (options.merge_lora && options.lora_rank == 0) {
    return parser.invalid("merge_lora", "no adapters to merge", "--lora_rank of 1 or more");
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
  run.global_batch_size = kDefaultBatch;
  run.batch_size = {kDefaultBatch};
  run.lr = 1e-3;
  run.weight_decay = 0;
  run.grad_clip = 0;
  run.scheduler = "constant";
  run.early_stopping = 20;
  run.log_every = 100;
  run.drop_last = false;
  run.cuda_graph = "auto";
}

void add_rec_flags(ConfigParser& parser, RecOptions& options) {
  add_interaction_flags(parser, options);
  add_table_flags(parser, options);
  add_model_flags(parser, options);
  add_gpt2_flags(parser, options);
  add_ranking_flags(parser, options);
  parser.fix({"data_format",   "user_column",      "item_column",     "rating_column", "time_column", "header",
              "csv_delimiter", "repeated_events",  "validation_data", "test_data",     "min_rating",  "k_core",
              "split",         "validation_share", "metric",          "model",         "embed_dim",   "n_layer",
              "n_head",        "n_embd",           "vocab_size",      "max_tokens",    "freeze_gpt2", "lora_rank",
              "lora_alpha",    "lora_targets",     "merge_lora"});
  parser.fix({"sampled_negatives", "sampled_for", "validation_negatives"});  // protocol of the best epoch
}

void add_rec_presets(ConfigParser& parser) {
  for (const MemoryPreset& preset : memory_presets()) {
    parser.add_preset(preset.name,
                      {{"global_batch_size", std::to_string(preset.global_batch_size)},
                       {"use_cache", preset.use_cache ? "true" : "false"},
                       {"parallel", std::to_string(preset.devices)}},
                      fmt::format("{} devices of {}", preset.devices, preset.memory));
  }
  parser.add_preset("gpt2_small",
                    {{"n_layer", "12"},
                     {"n_head", "12"},
                     {"n_embd", "768"},
                     {"vocab_size", "50257"},
                     {"embed_dim", "64"},
                     {"global_batch_size", "2048"},
                     {"use_cache", "true"},
                     {"parallel", "8"}},
                    "GPT-2 small (random weights without --gpt2), 2048 rows per step, 8 devices");
}

std::string share_global_batch(const ConfigParser& parser, RunOptions& run, int64_t replicas) {
  const auto given = [&](const char* name) { return !parser.is_default(name); };
  // Without a global batch size, as in the saved configuration of such a run, batch_size is the rows per device.
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
  return fmt::format("{} rows per step over {} devices{}: {} per device, {} {} by rounding", wanted, replicas,
                     steps > 1 ? fmt::format(" and {} micro-batches", steps) : "", per_device,
                     std::abs(wanted - *run.global_batch_size), wanted > *run.global_batch_size ? "fewer" : "more");
}

std::string fit_default_batch(const ConfigParser& parser, RunOptions& run, int64_t replicas, int64_t rows) {
  const bool is_default =
      parser.is_default("global_batch_size") && (parser.is_default("batch_size") || run.batch_size.is_auto());
  if (!run.resume.empty() || !is_default || !run.global_batch_size) return {};
  const int64_t most = std::max<int64_t>(1, rows / kLeastSteps), before = *run.global_batch_size;
  if (most >= before) return {};
  const int64_t steps = parser.is_default("grad_accum_steps") ? 1 : run.grad_accum_steps;
  const auto wanted = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(most)));
  const int64_t per_device = std::max<int64_t>(1, wanted / (replicas * steps));
  if (!run.batch_size.is_auto()) run.batch_size = {per_device};
  run.global_batch_size = per_device * replicas * steps;
  return fmt::format(
      "{} rows per step instead of {}: {} training rows give {} steps per epoch, at least {} (--batch_size or "
      "--global_batch_size sets another batch)",
      *run.global_batch_size, before, rows, (rows + *run.global_batch_size - 1) / *run.global_batch_size, kLeastSteps);
}

std::string fit_regularisation(const ConfigParser& parser, RunOptions& run, RecOptions& options, int64_t rows) {
  if (!run.resume.empty() || rows < 1) return {};
  std::string text;
  if (parser.is_default("embedding_decay") && parser.is_default("weight_decay")) {
    const double decay = std::min(1.0, 100 / std::sqrt(static_cast<double>(rows)));
    options.embedding_decay = std::round(decay * 100) / 100;
    text = fmt::format("--embedding_decay {} for {} training rows", *options.embedding_decay, rows);
  }
  if (parser.is_default("early_stopping") && rows < kLeastSteps * kDefaultBatch) {
    run.early_stopping = kPatienceOfFewRows;
    text += fmt::format("{}--early_stopping {}", text.empty() ? "" : ", ", run.early_stopping);
  }
  return text;
}

absl::Status check_rec_options(const ConfigParser& parser, const RunOptions& run, const RecOptions& options) {
  if (!options.plan_data.empty()) {
    if (!run.dry_run || !run.data_dir.empty()) {
      return parser.invalid("plan_data", "replaces --data_dir in a dry run", "--dry_run without --data_dir");
    }
    return parse_plan_data(options.plan_data)
               ? check_model(parser, options)
               : parser.invalid("plan_data", "not a valid data size",
                                "USERSxITEMSxRATINGS, such as 6040x3706x1000209, with at "
                                "least 2 users and 4 items, at least one rating and "
                                "at most half of the items per user");
  }
  if (run.data_dir.empty()) {
    return parser.invalid("data_dir", "not given", "a folder of ratings",
                          "to try it: trainkit-gpt2rec --make_demo_data DIR");
  }
  if (options.min_rating > 0 && !std::isfinite(options.min_rating)) {
    return parser.invalid("min_rating", "not a number");
  }
  TRAINKIT_RETURN_IF_ERROR(check_interactions(parser, options));
  return check_model(parser, options);
}

std::optional<DemoRatingsOptions> parse_plan_data(const std::string& text) {
  DemoRatingsOptions sizes;
  int64_t ratings = 0;
  const std::vector<std::string> numbers = absl::StrSplit(text, 'x');
  const bool plain = text.find_first_not_of("0123456789x") == std::string::npos;  // SimpleAtoi takes spaces and signs
  if (!plain || numbers.size() != 3 || !absl::SimpleAtoi(numbers[0], &sizes.users) ||
      !absl::SimpleAtoi(numbers[1], &sizes.items) || !absl::SimpleAtoi(numbers[2], &ratings)) {
    return std::nullopt;
  }
  const bool in_range = sizes.users >= 2 && sizes.users <= kMostPlanned && sizes.items >= 4 &&
                        sizes.items <= kMostPlanned && ratings >= sizes.users &&
                        ratings <= sizes.users * (sizes.items / 2);
  if (!in_range) return std::nullopt;
  sizes.ratings_per_user = (ratings + sizes.users / 2) / sizes.users;
  return sizes;
}

RatingsOptions ratings_options(const RecOptions& options) {
  RatingsOptions ratings{.format = options.data_format,
                         .table = {.user = options.user_column,
                                   .item = options.item_column,
                                   .rating = options.rating_column,
                                   .time = options.time_column,
                                   .header = options.header},
                         .validation = options.validation_data,
                         .test = options.test_data};
  if (options.csv_delimiter == "tab") ratings.table.delimiter = '\t';
  if (options.csv_delimiter.size() == 1) ratings.table.delimiter = options.csv_delimiter[0];
  if (options.repeated_events != "auto") ratings.may_repeat = options.repeated_events != "error";
  return ratings;
}

FilterOptions filter_options(const RecOptions& options) {
  return {
      .min_rating = options.min_rating, .k_core = options.k_core, .count_repeats = options.repeated_events == "count"};
}

SplitOptions split_options(const RecOptions& options, uint64_t seed) {
  return {.mode = options.split, .validation_share = options.validation_share, .seed = seed};
}

RankingOptions ranking_options(const RecOptions& options, Part part) {
  RankingOptions ranking{.part = part,
                         .ks = options.topk,
                         .sampled_negatives = options.sampled_negatives,
                         .sampled_per_user = options.sampled_for == "user",
                         .negatives_file = part == Part::kTest ? options.test_negatives : options.validation_negatives};
  ranking.ks.insert(ranking.ks.end(), {kMainTopK, length_of(options.metric)});
  std::sort(ranking.ks.begin(), ranking.ks.end());
  ranking.ks.erase(std::unique(ranking.ks.begin(), ranking.ks.end()), ranking.ks.end());
  return ranking;
}

Negatives negatives_of(const RecOptions& options) {
  return options.negatives == "popularity" ? Negatives::kPopularity : Negatives::kUniform;
}

}  // namespace trainkit::rec
