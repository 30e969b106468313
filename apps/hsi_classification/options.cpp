#include "hsi_classification/options.h"

#include <fmt/format.h>

#include "trainkit/app/app.h"
#include "trainkit/config/config.h"

namespace trainkit::hsi {
namespace {

void add_scene_flags(ConfigParser& parser, HsiOptions& options) {
  const OptionGroup add(parser, "Scene");
  add("scene", &options.scene,
      {.help = "Known scene in --data_dir (indian_pines, pavia_u, salinas_a, ...); auto: the only scene in the "
               "folder."});
  add("cube", &options.cube,
      {.help = "Cube of a scene without a name: .mat (5 or 7.3), .npy or ENVI .hdr.", .path = PathKind::kInput});
  add("cube_key", &options.cube_key, {.help = "Variable of the cube in a .mat; required if several are possible."});
  add("gt", &options.gt, {.help = "Ground truth: whole numbers, 0 means unlabelled.", .path = PathKind::kInput});
  add("gt_key", &options.gt_key, {.help = "Variable of the ground truth in a .mat; required if several are possible."});
  add("pca", &options.pca,
      {.help = "Principal components to keep; 0: all bands. Default: 30 for hybridsn, else all bands.",
       .min = 0,
       .max = 4096});
}

void add_split_flags(ConfigParser& parser, HsiOptions& options) {
  const OptionGroup add(parser, "Split");
  add("split", &options.split,
      {.help = "random: random pixels of each class; disjoint: whole blocks of the scene, so that few test pixels "
               "are near a training pixel; or a split.json of another run.",
       .path = PathKind::kInput,
       .path_words = {"random", "disjoint"},
       .metavar = "random|disjoint|FILE"});
  add("train_ratio", &options.train_ratio,
      {.help = "Share of labelled pixels for training, including validation.", .max = 0.99, .above = 0});
  add("train_count", &options.train_count,
      {.help = "Training pixels per class instead of a share; 0: use --train_ratio.", .min = 0, .max = 1 << 24});
  add("validation_share", &options.validation_share,
      {.help = "Share of the training pixels used for validation (early stopping, best step).", .min = 0, .max = 0.9});
  add("block_size", &options.block_size,
      {.help = "Side of a block of --split disjoint, in pixels.", .min = 1, .max = 1 << 16});
}

void add_model_flags(ConfigParser& parser, HsiOptions& options) {
  const OptionGroup add(parser, "Model");
  add("model", &options.model, {.help = "Network; see docs/hsi.md.", .choices = model_names()});
  add("patch_size", &options.patch_size,
      {.help = "Side of the patch around a pixel, odd. Default: 1 for mlp, 25 for hybridsn, 7 "
               "for ssrn, else 9.",
       .min = 1,
       .max = 255});
  add("dropout", &options.dropout,
      {.help = "Dropout in the fully connected layers of mlp and hybridsn.", .min = 0, .max = 0.99});
  add("augment", &options.augment, {.help = "Randomly flip and rotate training patches in each epoch."});
  add("feed", &options.feed,
      {.help = "device: keep the cube on the device and gather patches in the step; loader: workers copy patches; "
               "auto: device if the cube fits.",
       .choices = {"auto", "device", "loader"}});
  add("repeats", &options.repeats,
      {.help = "Number of runs with different seeds (split and weights); reports mean and standard deviation.",
       .min = 1,
       .max = 1000});
  add("write_maps", &options.write_maps, {.help = "Classify every pixel of the scene at the end and draw maps."});
}

}  // namespace

void set_run_defaults(RunOptions& run) {
  run.output_dir = "runs/hsi";
  run.epochs = 40;
  run.batch_size = {32};
  run.lr = 1e-3;
  run.weight_decay = 0.01;
  run.grad_clip = 1.0;
  run.scheduler = "cosine";
  run.save_every = {};
  run.cuda_graph = "auto";
}

void add_hsi_flags(ConfigParser& parser, HsiOptions& options) {
  add_scene_flags(parser, options);
  add_split_flags(parser, options);
  add_model_flags(parser, options);
  parser.fix({"scene", "cube_key", "gt_key", "pca", "split", "train_ratio", "train_count", "validation_share",
              "block_size", "model", "patch_size"});
}

absl::Status check_hsi_options(const ConfigParser& parser, const RunOptions& run, const HsiOptions& options) {
  const HsiModelDefaults least = model_defaults(options.model);
  const int64_t patch = options.used_patch_size();
  if (patch % 2 == 0) return parser.invalid("patch_size", "must be odd", "an odd number");
  if (patch < least.min_patch_size) {
    return parser.invalid("patch_size", fmt::format("too small for {}'s convolutions", options.model),
                          fmt::format("{} or more", least.min_patch_size));
  }
  if (const int64_t pca = options.used_pca(); pca != 0 && pca < least.min_bands) {
    return parser.invalid("pca", fmt::format("too small for {}'s convolutions", options.model),
                          fmt::format("0 or at least {}", least.min_bands));
  }
  if (options.train_count > 0 && parser.is_given("train_ratio")) {
    return parser.invalid("train_count", "conflicts with --train_ratio", "one of the two");
  }
  if (options.repeats > 1 && !run.resume.empty() && run.resume != "latest") {
    return parser.invalid("resume", "names one run, but --repeats asks for several", "latest, or --repeats 1");
  }
  return absl::OkStatus();
}

RunOptions repeat_of(const RunOptions& run, const HsiOptions& options, int64_t index) {
  if (options.repeats == 1) return run;
  RunOptions repeat = in_own_folder(run, fmt::format("repeat-{}", index + 1));
  repeat.seed += static_cast<uint64_t>(index);
  return repeat;
}

SceneOptions scene_options(const HsiOptions& options, const std::string& data_dir) {
  return {.data_dir = data_dir,
          .scene = options.scene,
          .cube = options.cube,
          .gt = options.gt,
          .cube_key = options.cube_key,
          .gt_key = options.gt_key};
}

SplitOptions split_options(const HsiOptions& options, uint64_t seed) {
  const bool random = options.split == "random", disjoint = options.split == "disjoint";
  return {.mode = random     ? SplitMode::kRandom
                  : disjoint ? SplitMode::kDisjoint
                             : SplitMode::kFile,
          .train_ratio = options.train_ratio,
          .train_count = options.train_count,
          .validation_share = options.validation_share,
          .block_size = options.block_size,
          .file = random || disjoint ? "" : options.split,
          .seed = seed};
}

HsiModelOptions model_options(const HsiOptions& options, int64_t bands, int64_t num_classes) {
  return {.model = options.model,
          .bands = bands,
          .patch_size = options.used_patch_size(),
          .num_classes = num_classes,
          .dropout = options.dropout};
}

}  // namespace trainkit::hsi
