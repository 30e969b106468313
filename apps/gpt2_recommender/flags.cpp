// The flags of trainkit-gpt2rec, and where each is used.
#include "gpt2_recommender/options.h"
#include "trainkit/config/config.h"

namespace trainkit::rec {
namespace {

// What a flag needs to have an effect.
OptionNeed tables() { return {"data_format", {"auto", "table"}}; }
OptionNeed gpt2() { return {"model", {"gpt2"}}; }
OptionNeed random_weights() { return {"gpt2", {""}}; }
OptionNeed adapters() { return {"lora_rank", {"0"}, /*excludes=*/true}; }

void add_table_flags(ConfigParser& parser, RecOptions& options) {
  const OptionGroup add(parser, "Tables of interactions", {modes::kTrain});
  add("user_column", &options.ratings.table.user,
      {.help = "Column of the users in a table (.csv, .tsv, .jsonl): a name or a number from 1. Default: a usual name "
               "such as user_id, "
               "or column 1 of a table without names.",
       .metavar = "NAME|N",
       .needs = {tables()}});
  add("item_column", &options.ratings.table.item,
      {.help = "Column of the items. Default: a usual name, or column 2.", .metavar = "NAME|N", .needs = {tables()}});
  add("rating_column", &options.ratings.table.rating,
      {.help = "Column of the ratings; none: the table has pairs. Default: a usual name, or column 3 if there is one.",
       .metavar = "NAME|N|none",
       .needs = {tables()}});
  add("time_column", &options.ratings.table.time,
      {.help = "Column of the times, numbers since 1970 or ISO 8601 dates; none: no times. Default: a usual name, or "
               "column 4 if there is one.",
       .metavar = "NAME|N|none",
       .needs = {tables()}});
  add("header", &options.ratings.table.header,
      {.help = "Whether line 1 has the names of the columns. auto: from column flags, usual names or the other lines.",
       .choices = {"auto", "yes", "no"},
       .needs = {tables()}});
  add("csv_delimiter", &options.csv_delimiter,
      {.help = "Field separator: one character, tab, or auto: a comma in a .csv, else a tab.",
       .metavar = "auto|tab|C",
       .needs = {tables()}});
  add("validation_data", &options.ratings.validation,
      {.help = "Table of the validation part; --data_dir is that of training. Default: --validation_share of the "
               "training part.",
       .path = PathKind::kInput,
       .needs = {tables()}});
  add("test_data", &options.ratings.test,
      {.help = "Table of the test part, instead of --split.", .path = PathKind::kInput, .needs = {tables()}});
}

void add_interaction_flags(ConfigParser& parser, RecOptions& options) {
  const OptionGroup add(parser, "Interactions", {modes::kTrain});
  add("data_format", &options.ratings.format,
      {.help =
           "Format of the files in --data_dir: MovieLens 1M (ratings.dat), 100k (u.data), RecBole (one .inter) or a "
           "table (.csv, .tsv, .jsonl, also .gz).",
       .choices = ratings_formats()});
  add("repeated_events", &options.repeated_events,
      {.help = "Several events of a user with one item. deduplicate: one interaction. count: one interaction, trained "
               "once per event. error: refuse them. auto: deduplicate in tables, else error.",
       .choices = {"auto", "error", "count", "deduplicate"}});
  add("min_rating", &options.filter.min_rating,
      {.help = "Smallest rating that counts as an interaction. 0: all ratings.", .min = 0});
  add("k_core", &options.filter.k_core,
      {.help = "Remove users and items with fewer interactions, repeatedly. 0: keep all.", .min = 0, .max = 1 << 20});
  add("split", &options.split.mode,
      {.help = "ratio: a random tenth of each user's interactions for the test and a tenth for validation. "
               "leave_one_out: the last interaction and the one before. Or the split.tsv of another run.",
       .path = PathKind::kInput,
       .path_words = {"ratio", "leave_one_out"},
       .metavar = "ratio|leave_one_out|FILE"});
  add("validation_share", &options.split.validation_share,
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
  add("optimizer", &options.optimizer,
      {.help = "adamw: AdamW. sparse_adam: SparseAdam, whose steps follow the batch and not the number of users and "
               "items, without weight decay. auto: sparse_adam on the CPU for more than 50,000 users and items, else "
               "adamw.",
       .choices = {"auto", "adamw", "sparse_adam"}});
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
  add("n_layer", &options.sizes.n_layer,
      {.help = "Number of layers of a GPT-2 with random weights.",
       .min = 1,
       .max = 1000,
       .needs = {gpt2(), random_weights()}});
  add("n_head", &options.sizes.n_head,
      {.help = "Number of attention heads; must divide n_embd.",
       .min = 1,
       .max = 1000,
       .needs = {gpt2(), random_weights()}});
  add("n_embd", &options.sizes.n_embd,
      {.help = "Width of its hidden states.", .min = 1, .max = 1 << 16, .needs = {gpt2(), random_weights()}});
  add("vocab_size", &options.sizes.vocab_size,
      {.help = "Size of its vocabulary. 0: that of the tokenizer.",
       .min = 0,
       .max = 1 << 24,
       .needs = {gpt2(), random_weights()}});
  add("max_tokens", &options.sizes.n_positions,
      {.help = "Number of tokens read from each text.", .min = 1, .max = 1024, .needs = {gpt2()}});
  add("freeze_gpt2", &options.freeze_gpt2, {.help = "Do not train GPT-2.", .needs = {gpt2()}});
  add("use_cache", &options.use_cache,
      {.help =
           "Cache GPT-2's output for each text on each device instead of computing it in every step. Default: on if "
           "GPT-2 is not trained.",
       .modes = {modes::kTrain, modes::kRun},
       .needs = {gpt2()}});
  add("lora_rank", &options.lora.rank,
      {.help = "Rank of LoRA adapters to train; GPT-2's weights stay frozen. 0: no adapters.",
       .min = 0,
       .max = 4096,
       .needs = {gpt2()}});
  add("lora_alpha", &options.lora.alpha,
      {.help = "LoRA scaling: the adapters' output is multiplied by lora_alpha / lora_rank.",
       .above = 0,
       .needs = {gpt2(), adapters()}});
  add("lora_targets", &options.lora.targets,
      {.help = "Layers that get an adapter: c_attn, c_fc, c_proj, mlp.c_proj, ...", .needs = {gpt2(), adapters()}});
  add("merge_lora", &options.merge_lora,
      {.help = "Write GPT-2 with the best adapters merged into its weights to <output_dir>/results/merged at the end.",
       .needs = {gpt2(), adapters()}});
}

void add_ranking_flags(ConfigParser& parser, RecOptions& options) {
  const OptionGroup add(parser, "Ranking", {modes::kTrain});
  add("topk", &options.ranking.ks,
      {.help = "Lengths of the scored lists. 10 and that of --metric are always included.",
       .min = 1,
       .max = 1000,
       .unique_items = true});
  add("sampled_negatives", &options.ranking.sampled_negatives,
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

}  // namespace

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
              "lora_alpha",    "lora_targets",     "merge_lora",      "optimizer"});
  parser.fix({"sampled_negatives", "sampled_for", "validation_negatives"});  // protocol of the best epoch
}

}  // namespace trainkit::rec
