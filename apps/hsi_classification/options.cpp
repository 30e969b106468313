#include "hsi_classification/options.h"

#include <fmt/format.h>

#include "trainkit/config/option_group.h"
#include "trainkit/train/checkpoint.h"

namespace trainkit::hsi {
namespace {

void add_scene_flags(ConfigParser& parser, HsiOptions& options) {
  const OptionGroup add(parser, "Scene");
  add("scene", &options.scene,
      {.help = "A known scene in --data_dir by its name (indian_pines, pavia_u, salinas_a, ...); auto: the one that is "
               "there."});
  add("cube", &options.cube,
      {.help = "The cube of any other scene: a .mat (5 or 7.3), .npy or ENVI .hdr.", .path = PathKind::kInput});
  add("cube_key", &options.cube_key, {.help = "Its variable in a .mat; needed only where there are several."});
  add("gt", &options.gt, {.help = "The ground truth: whole numbers, 0 is unlabelled.", .path = PathKind::kInput});
  add("gt_key", &options.gt_key, {.help = "Its variable in a .mat; needed only where there are several."});
  add("pca", &options.pca,
      {.help = "Principal components to keep; 0: all bands. Without it 30 for hybridsn, else all bands.",
       .min = 0,
       .max = 4096});
}

void add_split_flags(ConfigParser& parser, HsiOptions& options) {
  const OptionGroup add(parser, "Split");
  add("split", &options.split,
      {.help = "random: pixels of each class at random; disjoint: whole blocks of the scene, so that few test pixels "
               "are near a training pixel; or a split.json of another run.",
       .path = PathKind::kInput,
       .path_words = {"random", "disjoint"},
       .metavar = "random|disjoint|FILE"});
  add("train_ratio", &options.train_ratio,
      {.help = "Share of the labelled pixels that is trained on, validation included.", .max = 0.99, .above = 0});
  add("train_count", &options.train_count,
      {.help = "Pixels of each class that are trained on, instead of a share; 0: --train_ratio.",
       .min = 0,
       .max = 1 << 24});
  add("validation_share", &options.validation_share,
      {.help = "Share of the training pixels that early stopping and the best step look at.", .min = 0, .max = 0.9});
  add("block_size", &options.block_size,
      {.help = "Side of a block of --split disjoint, in pixels.", .min = 1, .max = 1 << 16});
}

void add_model_flags(ConfigParser& parser, HsiOptions& options) {
  const OptionGroup add(parser, "Model");
  add("model", &options.model, {.help = "The network; see the page of this trainer.", .choices = model_names()});
  add("patch_size", &options.patch_size,
      {.help = "Rows and columns around a pixel that the network sees, odd. Without it 1 for mlp, 25 for hybridsn, 7 "
               "for ssrn, else 9.",
       .min = 1,
       .max = 255});
  add("dropout", &options.dropout,
      {.help = "Share of values dropped in the fully connected layers of mlp and hybridsn.", .min = 0, .max = 0.99});
  add("augment", &options.augment, {.help = "Flip and turn training patches, another way in each epoch."});
  add("feed", &options.feed,
      {.help = "device: the cube lies on the device and patches are gathered in the step; loader: workers copy them; "
               "auto: device if the cube fits.",
       .choices = {"auto", "device", "loader"}});
  add("repeats", &options.repeats,
      {.help = "Runs with other seeds, for split and weights alike; their mean and standard deviation are the result.",
       .min = 1,
       .max = 1000});
  add("write_maps", &options.write_maps, {.help = "Classify every pixel of the scene at the end, and draw it."});
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
}

absl::Status check_hsi_options(const ConfigParser& parser, const RunOptions& run, const HsiOptions& options) {
  const HsiModelDefaults least = model_defaults(options.model);
  const int64_t patch = options.used_patch_size();
  if (patch % 2 == 0) return parser.invalid("patch_size", "has no pixel in its middle", "an odd number");
  if (patch < least.min_patch_size) {
    return parser.invalid("patch_size", fmt::format("leaves nothing of {}'s convolutions", options.model),
                          fmt::format("{} or more", least.min_patch_size));
  }
  if (const int64_t pca = options.used_pca(); pca != 0 && pca < least.min_bands) {
    return parser.invalid("pca", fmt::format("leaves nothing of {}'s convolutions", options.model),
                          fmt::format("0 or at least {}", least.min_bands));
  }
  if (options.train_count > 0 && parser.is_given("train_ratio")) {
    return parser.invalid("train_count", "contradicts --train_ratio", "one of the two");
  }
  if (options.repeats > 1 && !run.resume.empty() && run.resume != "latest") {
    return parser.invalid("resume", "is one run, but several are asked for", "latest, or --repeats 1");
  }
  return absl::OkStatus();
}

RunOptions repeat_of(const RunOptions& run, const HsiOptions& options, int64_t index) {
  RunOptions repeat = run;
  if (options.repeats == 1) return repeat;
  const std::string name = fmt::format("/repeat-{}", index + 1);
  repeat.seed += static_cast<uint64_t>(index);
  repeat.output_dir += name;
  if (!run.tensorboard_dir.empty()) repeat.tensorboard_dir += name;
  if (!run.resume.empty() && !resolve_checkpoint("latest", repeat.output_dir).ok()) repeat.resume.clear();
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
