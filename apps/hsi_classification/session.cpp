#include "hsi_classification/session.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

#include "hsi_classification/preprocess.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/logging/format.h"
#include "trainkit/nn/cross_entropy.h"
#include "trainkit/optim/adam.h"
#include "trainkit/train/checkpoint.h"

namespace trainkit::hsi {
namespace {

constexpr char kSplitFile[] = "split.json";

LossFunction loss_of(std::shared_ptr<const Feed> feed) {
  return make_loss_function([feed = std::move(feed)](HsiModel& model, const Batch& batch) {
    const at::Tensor& labels = batch["y"];
    const at::Tensor scores = model.forward(feed->patches(batch));
    LossOutput output(cross_entropy(scores, labels));
    const c10::NoGradGuard no_grad;
    output.metrics = {{"oa", scores.argmax(1).eq(labels).to(at::kFloat).mean()}};
    return output;
  });
}

/// Returns the same scene for smaller patches: with less of its mirrored border.
std::shared_ptr<const Feed> cropped(const Feed& feed, int64_t patch_size) {
  const int64_t border = feed.patch_size() / 2 - patch_size / 2;
  const at::Tensor& image = feed.image();
  const at::Tensor inner =
      image.narrow(0, border, image.size(0) - 2 * border).narrow(1, border, image.size(1) - 2 * border).contiguous();
  return std::make_shared<Feed>(feed.kind(), inner, patch_size, std::vector<at::Device>{at::kCPU});
}

int64_t resident_bytes(const Feed& feed) {
  return feed.kind() == FeedKind::kDevice ? static_cast<int64_t>(feed.image().nbytes()) : 0;
}

}  // namespace

absl::StatusOr<Session> Session::open(const ConfigParser& parser, const RunOptions& run, const HsiOptions& options,
                                      const Placement& placement) {
  TRAINKIT_ASSIGN_OR_RETURN(Scene scene, load_scene(scene_options(options, run.data_dir)));
  const int64_t components = options.used_pca();
  if (components > scene.bands()) {
    return parser.invalid("pca", "more components than the scene has bands", fmt::format("at most {}", scene.bands()));
  }
  if (const int64_t least = model_defaults(options.model).min_bands; components == 0 && scene.bands() < least) {
    return to_status({.exit_code = ExitCode::kData,
                      .id = "data.scene",
                      .where = scene.cube_path,
                      .problem = "too few bands for " + options.model,
                      .got = std::to_string(scene.bands()),
                      .expected = "at least " + std::to_string(least),
                      .hint = "--model cnn2d supports any number of bands"});
  }
  auto [preprocessing, cube] = fit_preprocessing(scene.cube, components);
  std::string prepared = "each band standardised over all pixels";
  if (preprocessing.pca) {
    prepared += fmt::format(", {} principal components ({:.2f}% of the variance)", components,
                            100 * preprocessing.pca->explained_variance.sum().item<double>());
  }
  const int64_t patch_size = options.used_patch_size();
  at::Tensor image = pad_mirrored(cube, patch_size / 2).contiguous();
  const FeedKind kind = choose_feed(options.feed, image, placement.plan.devices);
  auto feed = std::make_shared<Feed>(kind, std::move(image), patch_size, placement.plan.devices);
  return Session(options, std::move(scene), std::move(preprocessing), std::move(feed), std::move(prepared));
}

absl::StatusOr<Split> Session::split(const RunOptions& run, const Placement& placement) const {
  const auto make = [&]() -> absl::StatusOr<Split> {
    const std::string path = run.output_dir + "/" + kSplitFile;
    if (!run.resume.empty()) {
      TRAINKIT_ASSIGN_OR_RETURN(const CheckpointPath checkpoint, resolve_checkpoint(run.resume, run.output_dir));
      const std::string saved = checkpoint.run_folder() + "/" + kSplitFile;
      if (std::filesystem::exists(saved)) return load_split(saved, scene_.height(), scene_.width());
    }
    TRAINKIT_ASSIGN_OR_RETURN(Split made, make_split(scene_, split_options(options_, run.seed)));
    if (placement.is_first() && !run.dry_run) {
      TRAINKIT_RETURN_IF_ERROR(save_split(path, made, scene_.height(), scene_.width()));
    }
    return made;
  };
  return first_rank_first(placement, "splitting the scene", make);
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

LossFunction Session::loss() const { return loss_of(feed_); }

StepRecipe Session::recipe(const RunOptions& run, const Placement& placement, const at::Tensor& pixels) const {
  StepRecipe recipe{
      .make_model = [model = model()] { return create_model(model); },
      .make_optimizer = [run, replicas = placement.batch.replicas] { return make_optimizer(run, replicas); },
      .loss = loss(),
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
    recipe.smaller.emplace_back(
        fmt::format("--patch_size {}", size),
        [other, feed = feed_, pixels, labels = labels_of(pixels), augment = options_.augment](StepRecipe& choice) {
          const auto inner = cropped(*feed, other.patch_size);
          choice.make_model = [other] { return create_model(other); };
          choice.loss = loss_of(inner);
          choice.dataset = inner->dataset(pixels, labels, augment);
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
  return {
      {"scene", fmt::format("{}: {} x {} pixels, {} bands, {} classes; {}", scene_.name, scene_.height(),
                            scene_.width(), scene_.bands(), scene_.num_classes(), prepared_)},
      {"split", fmt::format("{}: {} training, {} validation and {} test pixels; leak {:.1f}%: the share of test "
                            "pixels inside a training patch",
                            options_.split, split.train.numel(), split.validation.numel(), split.test.numel(),
                            100 * leak(split))},
      {"feed", fmt::format("{} patches of {} x {}, {}", options_.model, feed.patch_size(), feed.patch_size(), kind)}};
}

std::unique_ptr<Optimizer> make_optimizer(const RunOptions& run, int64_t replicas) {
  return std::make_unique<AdamW>(AdamWOptions{.lr = resolve_lr(run, replicas), .weight_decay = run.weight_decay});
}

absl::StatusOr<int> write_demo_data(const std::string& folder, uint64_t seed) {
  TRAINKIT_RETURN_IF_ERROR(Fs::posix().create_directories(folder).status());
  TRAINKIT_RETURN_IF_ERROR(write_demo_scene(folder, {.seed = seed}));
  std::fputs(fmt::format("wrote {0}/demo.mat and {0}/demo_gt.mat\n"
                         "try: trainkit-hsi --cube {0}/demo.mat --gt {0}/demo_gt.mat\n",
                         folder)
                 .c_str(),
             stdout);
  return 0;
}

}  // namespace trainkit::hsi
