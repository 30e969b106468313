#include "hsi_classification/session.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "hsi_classification/initial_scene.h"
#include "hsi_classification/preprocess.h"
#include "trainkit/arrays/mat.h"
#include "trainkit/core/data_error.h"
#include "trainkit/core/error.h"
#include "trainkit/core/format.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/tasks/classification.h"
#include "trainkit/train/checkpoint.h"

namespace trainkit::hsi {
namespace {

/// Returns the same scene for smaller patches: with less of its mirrored border.
std::shared_ptr<const Feed> cropped(const Feed& feed, int64_t patch_size) {
  const int64_t border = feed.patch_size() / 2 - patch_size / 2;
  const at::Tensor& image = feed.image();
  const at::Tensor inner =
      image.narrow(0, border, image.size(0) - 2 * border).narrow(1, border, image.size(1) - 2 * border).contiguous();
  return std::make_shared<Feed>(feed.kind(), inner, patch_size, std::vector<at::Device>{at::kCPU});
}

/// Lists the classes without pixels: "Oats, Alfalfa and 3 more classes". Empty if there are none.
std::string missing_classes(const Scene& scene, const std::vector<int64_t>& counts) {
  constexpr size_t kMostListed = 5;
  std::vector<std::string> names;
  for (size_t k = 0; k < counts.size(); ++k) {
    if (counts[k] == 0) names.push_back(escape_text(scene.class_names[k]));
  }
  if (names.size() <= kMostListed) return fmt::format("{}", fmt::join(names, ", "));
  return fmt::format("{} and {} more classes", fmt::join(names.begin(), names.begin() + kMostListed, ", "),
                     names.size() - kMostListed);
}

int64_t resident_bytes(const Feed& feed) {
  return feed.kind() == FeedKind::kDevice ? static_cast<int64_t>(feed.image().nbytes()) : 0;
}

}  // namespace

absl::StatusOr<Session> Session::open(const ConfigParser& parser, const RunOptions& run, const HsiOptions& options,
                                      const Placement& placement) {
  Scene scene;
  if (options.write_maps && !run.dry_run) TRAINKIT_RETURN_IF_ERROR(load_mat_writer());
  if (options.plan_data.empty()) {
    TRAINKIT_ASSIGN_OR_RETURN(scene, load_scene(scene_options(options, run.data_dir)));
  } else {
    scene = planned_scene(parse_plan_data(options.plan_data).value());
  }
  const int64_t components = options.used_pca();
  if (components > scene.bands()) {
    return parser.invalid("pca", "more components than the scene has bands", fmt::format("at most {}", scene.bands()));
  }
  if (const int64_t least = model_defaults(options.net.model).min_bands; components == 0 && scene.bands() < least) {
    return data_error("data.scene", {.file = scene.cube_path}, "too few bands for " + options.net.model,
                      std::to_string(scene.bands()), "at least " + std::to_string(least),
                      "--model cnn2d supports any number of bands");
  }
  TRAINKIT_ASSIGN_OR_RETURN(const auto earlier, earlier_preprocessing(run, options, scene));
  const int64_t patch_size = options.used_patch_size();
  Digest digest;
  TRAINKIT_ASSIGN_OR_RETURN(PreparedScene ready,
                            prepare_scene(scene.cube, earlier, components, patch_size / 2, digest));
  auto& [preprocessing, image] = ready;
  digest.update(scene.labels.const_data_ptr(), scene.labels.nbytes());
  std::string prepared =
      std::string("each band standardised ") + (!earlier             ? "over all pixels"
                                                : run.resume.empty() ? "with the statistics of the weights' run"
                                                                     : "as before");
  if (preprocessing.pca) {
    prepared += fmt::format(", {} principal components", components);
    if (!earlier) {
      prepared +=
          fmt::format(" ({:.2f}% of the variance)", 100 * preprocessing.pca->explained_variance.sum().item<double>());
    }
  }
  const FeedKind kind = choose_feed(options.feed, image, placement.devices);
  auto feed = std::make_shared<Feed>(kind, std::move(image), patch_size, placement.devices);
  return Session(options, std::move(scene), std::move(preprocessing), std::move(feed), std::move(prepared),
                 digest.hex());
}

absl::StatusOr<Split> Session::split(const RunOptions& run) const {
  TRAINKIT_ASSIGN_OR_RETURN(const auto saved, earlier_file(run, kSplitFile));
  SplitOptions split = split_options(options_, run.seed);
  if (saved) {
    // Pixels of the split may have no class in another ground truth.
    TRAINKIT_RETURN_IF_ERROR(check_data(run, digest_));
    split.mode = *saved;
  }
  return make_split(scene_, split);
}

double Session::leak(const Split& split) const {
  return hsi::leak(split, scene_.height(), scene_.width(), feed_->patch_size());
}

at::Tensor Session::labels_of(const at::Tensor& pixels) const {
  return scene_.labels.flatten().index_select(0, pixels) - 1;
}

std::shared_ptr<const Dataset> Session::rows(const at::Tensor& pixels, bool augment) const {
  return feed_->dataset(pixels, labels_of(pixels), augment);
}

std::vector<int64_t> Session::class_counts(const at::Tensor& pixels) const {
  std::vector<int64_t> counts(static_cast<size_t>(scene_.num_classes()), 0);
  const at::Tensor labels = labels_of(pixels).contiguous();
  for (int64_t i = 0; i < labels.numel(); ++i) ++counts[static_cast<size_t>(labels.const_data_ptr<int64_t>()[i])];
  return counts;
}

std::shared_ptr<const Dataset> Session::test_rows(const Split& split) const {
  if (!options_.write_maps) return rows(split.test, /*augment=*/false);
  const int64_t pixels = scene_.height() * scene_.width();
  at::Tensor labels = at::full({pixels}, -1, at::kLong);
  labels.index_copy_(0, split.test, labels_of(split.test));
  return feed_->dataset(at::arange(pixels, at::kLong), labels, /*augment=*/false);
}

std::shared_ptr<Task> Session::task_with(std::shared_ptr<const Feed> feed, const at::Tensor& pixels) const {
  return classification(
      [feed = std::move(feed)](HsiModel& model, const Batch& batch) { return model.forward(feed->patches(batch)); },
      {.labels = scene_.class_names,
       .label_values = scene_.label_values,
       .training_counts = class_counts(pixels),
       .weight_classes = options_.class_weights,
       .scores = {{.key = "oa", .title = "oa", .long_title = "overall accuracy"},
                  {.key = "aa", .title = "aa", .long_title = "average accuracy"},
                  {"kappa", "kappa", ScoreName::Kind::kNumber},
                  {"leak", "leak", ScoreName::Kind::kPercent, /*aside=*/true}},
       .validation_scores = {"aa"},
       .accuracy_key = "oa",
       .recalls = true,
       .row_word = "pixel",
       .title = "Scores of the test pixels",
       .keep_classes_only = true});
}

std::shared_ptr<Task> Session::task(const at::Tensor& pixels) const { return task_with(feed_, pixels); }

StepRecipe Session::recipe(const at::Tensor& pixels) const {
  StepRecipe recipe{.make_model = [model = model()] { return create_model(model); },
                    .loss = task(pixels)->training_loss(),
                    .dataset = rows(pixels, options_.augment),
                    .cache_bytes = resident_bytes(*feed_)};
  const HsiModelOptions own = model();
  const auto simple = model_defaults("cnn2d");
  if (own.model != "cnn2d" && own.model != "mlp" && own.patch_size >= simple.min_patch_size) {
    HsiModelOptions other = own;
    other.model = "cnn2d";
    recipe.smaller.emplace_back(
        fmt::format("--model cnn2d --patch_size {} --pca {}", own.patch_size, options_.used_pca()),
        [other](StepRecipe& choice) { choice.make_model = [other] { return create_model(other); }; });
  }
  const int64_t least = model_defaults(own.model).min_patch_size;
  for (const int64_t less : {2, 4}) {
    const int64_t size = own.patch_size - less;
    if (size < least) continue;
    HsiModelOptions other = own;
    other.patch_size = size;
    recipe.smaller.emplace_back(fmt::format("--patch_size {}", size), [this, other, pixels](StepRecipe& choice) {
      const auto inner = cropped(*feed_, other.patch_size);
      choice.make_model = [other] { return create_model(other); };
      choice.loss = task_with(inner, pixels)->training_loss();
      choice.dataset = inner->dataset(pixels, labels_of(pixels), options_.augment);
      choice.cache_bytes = resident_bytes(*inner);
    });
  }
  return recipe;
}

RunFacts Session::describe(const Split& split) const {
  const Feed& feed = *feed_;
  const std::string kind = feed.kind() == FeedKind::kDevice
                               ? fmt::format("gathered in the step from an image of {}",
                                             format_size(static_cast<int64_t>(feed.image().nbytes())))
                               : "copied by the loader's workers";
  RunFacts facts = {
      {"scene", fmt::format("{}: {} x {} pixels, {} bands, {} classes, {}; {}", scene_.name, scene_.height(),
                            scene_.width(), scene_.bands(), scene_.num_classes(),
                            scene_.background ? fmt::format("label {} is no class", *scene_.background)
                                              : "every pixel has a class",
                            prepared_)},
      {"split", fmt::format("{}: {} training, {} validation and {} test pixels; leak {:.1f}%: the share of test "
                            "pixels inside a training patch",
                            options_.split.mode, split.train.numel(), split.validation.numel(), split.test.numel(),
                            100 * leak(split))},
      {"feed",
       fmt::format("{} patches of {} x {}, {}", options_.net.model, feed.patch_size(), feed.patch_size(), kind)}};
  if (!scene_.note.empty()) facts.emplace_back("note", scene_.note);
  const std::pair<const char*, const at::Tensor&> parts[] = {
      {"training", split.train}, {"validation", split.validation}, {"test", split.test}};
  for (const auto& [name, pixels] : parts) {
    const std::string missing = pixels.numel() > 0 ? missing_classes(scene_, class_counts(pixels)) : "";
    if (missing.empty()) continue;
    facts.emplace_back("warning:", fmt::format("no {} pixel of {}", name, missing));
  }
  return facts;
}

}  // namespace trainkit::hsi
