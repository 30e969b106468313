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

namespace trainkit::rec {
namespace {

constexpr int64_t kMostPlanned = 1 << 24;
constexpr int64_t kDefaultBatch = 2048;
constexpr int64_t kPatienceOfFewRows = 40;  // their scores vary more from epoch to epoch

// Source: the recommended settings of the recommender's guide.
constexpr MemoryPreset kMemoryPresets[] = {{"over_8gib", "more than 8 GiB", 2048, true, 8},
                                           {"4_to_8gib", "4 to 8 GiB", 1024, true, 4},
                                           {"under_4gib", "less than 4 GiB", 512, false, 2}};

/// The sizes of GPT-2 small and of the recommender's vectors.
Settings gpt2_small() {
  return {{"n_layer", "12"}, {"n_head", "12"}, {"n_embd", "768"}, {"vocab_size", "50257"}, {"embed_dim", "64"}};
}

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

absl::Status check_interactions(const ConfigParser& parser, const RecOptions& options) {
  if (options.csv_delimiter != "auto" && options.csv_delimiter != "tab" &&
      (options.csv_delimiter.size() != 1 || options.csv_delimiter == "\"")) {
    return parser.invalid("csv_delimiter", "not a separator", "auto, tab or one character such as ;");
  }
  for (const auto& [flag, column] :
       {std::pair("user_column", &options.ratings.table.user), {"item_column", &options.ratings.table.item}}) {
    if (*column == "none") return parser.invalid(flag, "a table needs this column", "a name or a number");
  }
  if (!options.ratings.validation.empty() && options.ratings.test.empty()) {
    return parser.invalid("validation_data", "given without a test part", "--test_data too");
  }
  if (!options.ratings.test.empty() && parser.is_given("split")) {
    return parser.invalid("split", "conflicts with --test_data", "one of the two");
  }
  const bool has_share =
      options.ratings.test.empty() ? options.split.mode == "ratio" : options.ratings.validation.empty();
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

absl::Status check_optimizer(const ConfigParser& parser, const RunOptions& run, const RecOptions& options) {
  if (!options.is_sparse()) return absl::OkStatus();
  for (const auto& [flag, decay] : {std::pair("weight_decay", run.weight_decay),
                                    std::pair("embedding_decay", options.embedding_decay.value_or(0))}) {
    if (decay != 0) return parser.invalid(flag, "SparseAdam has no weight decay", "0, or --optimizer adamw");
  }
  if (run.shard != Sharding::kNone) {
    return parser.invalid("shard", "the sparse gradients of --optimizer sparse_adam are not divided",
                          "none, or --optimizer adamw");
  }
  return absl::OkStatus();
}

absl::Status check_model(const ConfigParser& parser, const RecOptions& options) {
  if (options.model != "gpt2") return absl::OkStatus();
  if (options.use_cache.value_or(false) && !options.is_frozen()) {
    return parser.invalid("use_cache", "GPT-2 is trained, so a cache of its output would be stale", "a frozen GPT-2",
                          "use --freeze_gpt2 without adapters, or --no-use_cache");
  }
  if (options.merge_lora && options.lora.rank == 0) {
    return parser.invalid("merge_lora", "no adapters to merge", "--lora_rank of 1 or more");
  }
  if (options.gpt2.empty() && options.sizes.n_embd % options.sizes.n_head != 0) {
    return parser.invalid("n_head", "does not divide n_embd", fmt::format("a divisor of {}", options.sizes.n_embd));
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
  run.cuda_graph = CudaGraph::kAuto;
}

const MemoryPreset& preset_for_memory(int64_t device_bytes) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  return kMemoryPresets[device_bytes > 8 * kGiB ? 0 : device_bytes >= 4 * kGiB ? 1 : 2];
}

void add_rec_presets(ConfigParser& parser) {
  for (const MemoryPreset& preset : kMemoryPresets) {
    parser.add_preset(preset.name,
                      {{"global_batch_size", std::to_string(preset.global_batch_size)},
                       {"use_cache", preset.use_cache ? "true" : "false"},
                       {"parallel", std::to_string(preset.devices)}},
                      fmt::format("{} devices of {}", preset.devices, preset.memory));
  }
  Settings small = gpt2_small();
  small.insert(small.end(), {{"global_batch_size", "2048"}, {"use_cache", "true"}, {"parallel", "8"}});
  parser.add_preset("gpt2_small", small, "GPT-2 small (random weights without --gpt2), 2048 rows per step, 8 devices");
}

PlanExample plan_example(const ConfigParser& parser, int64_t device_bytes) {
  PlanExample example{.settings = {{"gpu_memory", "24GiB"}},
                      .guide = "8 devices, 2048 rows per step, cache",
                      .parts = {{"weights", 500, 600, "weights"},
                                {"  GPT-2", 500, 500, "", {"gpt2"}},
                                {"  embeddings", 10, 50, "", {"user_embedding", "item_embedding"}},
                                {"  MLP", 5, 20, "", {"user_mlp", "item_mlp", "projection"}},
                                {"cache", 2, 3, "cache"},
                                {"activations", 100, 200, "activations"},
                                {"gradients", 600, 600, "gradients"},
                                {"optimizer", 1200, 1200, "optimizer"},
                                {"in all", 2500, 3000, "total"}}};
  Settings& settings = example.settings;
  if (!parser.is_given("data_dir")) settings.emplace_back("plan_data", "6040x3706x1000209");
  if (parser.is_given("preset")) return example;
  const MemoryPreset& preset = preset_for_memory(device_bytes > 0 ? device_bytes : int64_t{24} << 30);
  settings.insert(settings.end(), {{"global_batch_size", std::to_string(preset.global_batch_size)},
                                   {"use_cache", preset.use_cache ? "true" : "false"},
                                   {"devices", std::to_string(preset.devices)}});
  const Settings small = gpt2_small();
  settings.insert(settings.end(), small.begin(), small.end());
  return example;
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

std::string choose_optimizer(const RunOptions& run, RecOptions& options, bool on_cpu, int64_t vectors) {
  if (options.optimizer != "auto") return {};
  options.optimizer = "adamw";
  const bool is_new = run.resume.empty() && run.gpu_memory.empty() && run.shard == Sharding::kNone;
  const bool decays = run.weight_decay != 0 || options.embedding_decay.value_or(0) != 0;
  if (!is_new || !on_cpu || decays || vectors <= kSparseVectors) return {};
  options.optimizer = "sparse_adam";
  return fmt::format(
      "sparse_adam for {} users and items: its steps follow the batch; without weight decay (--optimizer adamw has "
      "one)",
      vectors);
}

std::string fit_regularisation(const ConfigParser& parser, RunOptions& run, RecOptions& options, int64_t rows) {
  if (!run.resume.empty() || rows < 1) return {};
  std::string text;
  if (!options.is_sparse() && parser.is_default("embedding_decay") && parser.is_default("weight_decay")) {
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
  TRAINKIT_RETURN_IF_ERROR(check_optimizer(parser, run, options));
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
  if (options.filter.min_rating > 0 && !std::isfinite(options.filter.min_rating)) {
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
  RatingsOptions ratings = options.ratings;
  if (options.csv_delimiter == "tab") ratings.table.delimiter = '\t';
  if (options.csv_delimiter.size() == 1) ratings.table.delimiter = options.csv_delimiter[0];
  if (options.repeated_events != "auto") ratings.may_repeat = options.repeated_events != "error";
  return ratings;
}

FilterOptions filter_options(const RecOptions& options) {
  FilterOptions filter = options.filter;
  filter.count_repeats = options.repeated_events == "count";
  return filter;
}

RankingOptions ranking_options(const RecOptions& options, Part part) {
  RankingOptions ranking = options.ranking;
  ranking.part = part;
  ranking.sampled_per_user = options.sampled_for == "user";
  ranking.negatives_file = part == Part::kTest ? options.test_negatives : options.validation_negatives;
  ranking.ks.insert(ranking.ks.end(), {kMainTopK, length_of(options.metric)});
  std::sort(ranking.ks.begin(), ranking.ks.end());
  ranking.ks.erase(std::unique(ranking.ks.begin(), ranking.ks.end()), ranking.ks.end());
  return ranking;
}

Negatives negatives_of(const RecOptions& options) {
  return options.negatives == "popularity" ? Negatives::kPopularity : Negatives::kUniform;
}

}  // namespace trainkit::rec
