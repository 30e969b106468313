#include "hsi_classification/options.h"

#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_split.h>
#include <fmt/format.h>

#include <algorithm>

#include "trainkit/app/app.h"
#include "trainkit/config/config.h"
#include "trainkit/core/data_error.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/train/checkpoint.h"

namespace trainkit::hsi {
namespace {

constexpr char kPredictMode[] = "predict";

/// A split that this run draws, not one of a file.
OptionNeed drawn_split() { return {"split", {"random", "disjoint"}}; }

void add_scene_flags(ConfigParser& parser, HsiOptions& options) {
  const OptionGroup add(parser, "Scene", {modes::kTrain});
  add("scene", &options.scene.scene,
      {.help = "Known scene in --data_dir (indian_pines, pavia_u, salinas_a, ...); auto: the only scene in the "
               "folder."});
  add("cube", &options.scene.cube,
      {.help = "Cube of a scene without a name: .npy, .npz, .mat (5 or 7.3), .h5, ENVI .hdr or .safetensors.",
       .path = PathKind::kInput,
       .modes = {modes::kTrain, kPredictMode}});
  add("cube_key", &options.scene.cube_key,
      {.help = "Array of the cube in a file with several (group/name in an .h5); required if several are possible.",
       .modes = {modes::kTrain, kPredictMode}});
  add("gt", &options.scene.gt, {.help = "Ground truth: a whole number for each pixel.", .path = PathKind::kInput});
  add("gt_key", &options.scene.gt_key,
      {.help = "Array of the ground truth in a file with several; required if several are possible."});
  add("background_class", &options.background_class,
      {.help = "Label of pixels that have no class. none: every label is a class, 0 too, as in scenes of anomalies.",
       .metavar = "none|N"});
  add("class_names", &options.scene.class_names,
      {.help =
           "Names of the classes by ascending label, for tables and maps; a single word is a file with one name per "
           "line. Default: those of a known scene, else \"class N\".",
       .max_items = 4096,
       .unique_items = true,
       .metavar = "NAME... | FILE"});
  add("plan_data", &options.plan_data,
      {.help = "Size of a generated scene for a --dry_run without data. Indian Pines has 145x145x200x16x10249.",
       .metavar = "HEIGHTxWIDTHxBANDSxCLASSESxPIXELS",
       .flag_only = true,
       .needs = {{"dry_run", {"true"}}}});
  add("pca", &options.pca,
      {.help = "Principal components to keep; 0: all bands. Default: 30 for hybridsn, else all bands.",
       .min = 0,
       .max = 4096});
}

void add_split_flags(ConfigParser& parser, HsiOptions& options) {
  const OptionGroup add(parser, "Split", {modes::kTrain});
  add("split", &options.split.mode,
      {.help = "random: random pixels of each class; disjoint: whole blocks of the scene, so that few test pixels "
               "are near a training pixel; or a split.json of another run.",
       .path = PathKind::kInput,
       .path_words = {"random", "disjoint"},
       .metavar = "random|disjoint|FILE"});
  add("train_ratio", &options.split.train_ratio,
      {.help = "Share of labelled pixels for training, including validation.",
       .max = 0.99,
       .above = 0,
       .needs = {drawn_split()}});
  add("train_count", &options.split.train_count,
      {.help = "Training pixels per class instead of a share; 0: use --train_ratio.",
       .min = 0,
       .max = 1 << 24,
       .needs = {drawn_split()}});
  add("validation_share", &options.split.validation_share,
      {.help = "Share of the training pixels used for validation (early stopping, best step).",
       .min = 0,
       .max = 0.9,
       .needs = {drawn_split()}});
  add("block_size", &options.split.block_size,
      {.help = "Side of a block of --split disjoint, in pixels.",
       .min = 1,
       .max = 1 << 16,
       .needs = {{"split", {"disjoint"}}}});
}

void add_model_flags(ConfigParser& parser, HsiOptions& options) {
  const OptionGroup add(parser, "Model", {modes::kTrain});
  add("model", &options.net.model, {.help = "Network; see docs/hsi.md.", .choices = model_names()});
  add("patch_size", &options.patch_size,
      {.help = "Side of the patch around a pixel, odd. Default: 1 for mlp, 25 for hybridsn, 7 "
               "for ssrn, else 9.",
       .min = 1,
       .max = 255});
  add("dropout", &options.net.dropout,
      {.help = "Dropout in the fully connected layers of mlp and hybridsn.",
       .min = 0,
       .max = 0.99,
       .needs = {{"model", {"mlp", "hybridsn"}}}});
  add("augment", &options.augment, {.help = "Randomly flip and rotate training patches in each epoch."});
  add("class_weights", &options.class_weights,
      {.help = "Weight classes by the inverse of their frequency among the training pixels."});
  add("feed", &options.feed,
      {.help = "device: keep the cube on the device and gather patches in the step; loader: workers copy patches; "
               "auto: device if the cube fits.",
       .choices = {"auto", "device", "loader"},
       .modes = {modes::kTrain, kPredictMode}});
  add("repeats", &options.repeats,
      {.help = "Number of runs with different seeds (split and weights); reports mean and standard deviation.",
       .min = 1,
       .max = 1000});
  add("write_maps", &options.write_maps, {.help = "Classify every pixel of the scene at the end and draw maps."});
}

/// Parses --background_class. False for other words than none and labels.
bool parse_background(const std::string& text, std::optional<int64_t>& background) {
  background.reset();
  if (text == "none") return true;
  int64_t label = -1;
  const bool is_label = text.find_first_not_of("0123456789") == text.npos && absl::SimpleAtoi(text, &label);
  background = label;
  return is_label;
}

absl::Status bad_names(const std::string& path, int64_t line, const std::string& problem, const std::string& got) {
  return data_error("data.class_names", {.file = path, .line = line}, problem, got, "one name per line, each once");
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
  run.cuda_graph = CudaGraph::kAuto;
}

void add_hsi_flags(ConfigParser& parser, HsiOptions& options) {
  add_scene_flags(parser, options);
  add_split_flags(parser, options);
  add_model_flags(parser, options);
  parser.fix({"scene", "cube_key", "gt_key", "background_class", "pca", "split", "train_ratio", "train_count",
              "validation_share", "block_size", "model", "patch_size"});
}

absl::Status resolve_class_names(HsiOptions& options) {
  constexpr int64_t kMostBytes = 1 << 20;
  std::vector<std::string>& names = options.scene.class_names;
  if (names.size() != 1) return absl::OkStatus();
  const std::string path = names.front();
  const auto text = Fs::posix().read_file(path, kMostBytes);
  if (!text.ok()) return reclassify(text.status(), ExitCode::kData, "data.class_names");
  names.clear();
  const std::vector<std::string> lines = absl::StrSplit(absl::StripTrailingAsciiWhitespace(*text), '\n');
  for (int64_t line = 1; line <= std::ssize(lines); ++line) {
    const std::string name(absl::StripAsciiWhitespace(lines[static_cast<size_t>(line - 1)]));
    if (name.empty()) return bad_names(path, line, "empty name", "");
    if (std::find(names.begin(), names.end(), name) != names.end()) {
      return bad_names(path, line, "duplicate name", name);
    }
    names.push_back(name);
  }
  return absl::OkStatus();
}

std::optional<PlannedSceneOptions> parse_plan_data(const std::string& text) {
  constexpr int64_t kMostSide = 65'535, kMostBands = 4096, kMostValues = int64_t{1} << 30;
  PlannedSceneOptions sizes;
  int64_t* const members[] = {&sizes.height, &sizes.width, &sizes.bands, &sizes.classes, &sizes.labelled};
  const std::vector<std::string> numbers = absl::StrSplit(text, 'x');
  // SimpleAtoi accepts spaces and signs.
  if (text.find_first_not_of("0123456789x") != text.npos || numbers.size() != std::size(members)) return std::nullopt;
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (!absl::SimpleAtoi(numbers[i], members[i]) || *members[i] < 1) return std::nullopt;
  }
  const bool in_range = sizes.height <= kMostSide && sizes.width <= kMostSide && sizes.bands <= kMostBands &&
                        sizes.height * sizes.width <= kMostValues / sizes.bands && sizes.classes >= 2 &&
                        sizes.classes <= 4096 && sizes.labelled >= 10 * sizes.classes &&
                        sizes.labelled <= sizes.height * sizes.width;
  return in_range ? std::optional(sizes) : std::nullopt;
}

absl::Status check_hsi_options(const ConfigParser& parser, const RunOptions& run, const HsiOptions& options) {
  if (!options.plan_data.empty()) {
    const bool has_data = !run.data_dir.empty() || !options.scene.cube.empty() || !options.scene.gt.empty();
    if (!run.dry_run || has_data) {
      return parser.invalid("plan_data", "replaces the data of a dry run", "--dry_run without --data_dir and --cube");
    }
    if (!parse_plan_data(options.plan_data)) {
      return parser.invalid("plan_data", "not a valid size of a scene",
                            "HEIGHTxWIDTHxBANDSxCLASSESxPIXELS, such as 145x145x200x16x10249, with at least ten "
                            "labelled pixels per class");
    }
  }
  const HsiModelDefaults least = model_defaults(options.net.model);
  const int64_t patch = options.used_patch_size();
  if (patch % 2 == 0) return parser.invalid("patch_size", "must be odd", "an odd number");
  if (patch < least.min_patch_size) {
    return parser.invalid("patch_size", fmt::format("too small for {}'s convolutions", options.net.model),
                          fmt::format("{} or more", least.min_patch_size));
  }
  if (const int64_t pca = options.used_pca(); pca != 0 && pca < least.min_bands) {
    return parser.invalid("pca", fmt::format("too small for {}'s convolutions", options.net.model),
                          fmt::format("0 or at least {}", least.min_bands));
  }
  if (std::optional<int64_t> background; !parse_background(options.background_class, background)) {
    return parser.invalid("background_class", "neither none nor a label", "none, or a whole number from 0 on");
  }
  if (options.split.train_count > 0 && parser.is_given("train_ratio")) {
    return parser.invalid("train_count", "conflicts with --train_ratio", "one of the two");
  }
  if (options.repeats > 1 && !run.resume.empty() && run.resume != "latest") {
    return parser.invalid("resume", "names one run, but --repeats asks for several", "latest, or --repeats 1");
  }
  return absl::OkStatus();
}

SceneOptions scene_options(const HsiOptions& options, const std::string& data_dir) {
  SceneOptions scene = options.scene;
  scene.data_dir = data_dir;
  parse_background(options.background_class, scene.background);
  return scene;
}

SplitOptions split_options(const HsiOptions& options, uint64_t seed) {
  SplitOptions split = options.split;
  split.seed = seed;
  return split;
}

HsiModelOptions model_options(const HsiOptions& options, int64_t bands, int64_t num_classes) {
  HsiModelOptions model = options.net;
  model.bands = bands;
  model.patch_size = options.used_patch_size();
  model.num_classes = num_classes;
  return model;
}

}  // namespace trainkit::hsi
