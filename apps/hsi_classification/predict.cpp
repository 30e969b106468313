#include "hsi_classification/predict.h"

#include <ATen/Functions.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "hsi_classification/feed.h"
#include "hsi_classification/maps.h"
#include "hsi_classification/trained_scene.h"
#include "trainkit/arrays/array_file.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/io/table.h"

namespace trainkit::hsi {
namespace {

// Note [Prediction by strips]
//
// A scene is classified strip by strip: each strip is a range of its pixels, in the memory of about kStripBytes, and
// the results of each batch are appended to their files. A strip begins and ends at a multiple of the rows that all
// devices compute at a time, so that the batches, whose size may change the last bits of a result, are those of the
// whole scene.

constexpr int64_t kStripBytes = int64_t{128} << 20;

/// What is appended while the scene is classified.
struct Outputs {
  AppendElements map, classes, probabilities;
};

/// Draws the rows of a map as their last pixel arrives.
class MapRows {
 public:
  MapRows(const TrainedScene& trained, int64_t width, AppendElements append)
      : legend_(legend_of(trained.class_names)), width_(width), append_(std::move(append)) {}

  /// Adds classes 1..C (n) int64.
  absl::Status add(const at::Tensor& classes) {
    const int64_t* const values = classes.const_data_ptr<int64_t>();
    pixels_.insert(pixels_.end(), values, values + classes.numel());
    const int64_t rows = std::ssize(pixels_) / width_;
    if (rows == 0) return absl::OkStatus();
    const at::Tensor map = at::tensor(at::ArrayRef<int64_t>(pixels_.data(), rows * width_), at::kLong);
    pixels_.erase(pixels_.begin(), pixels_.begin() + rows * width_);
    return append_(draw_map(map.view({rows, width_}), legend_));
  }

 private:
  std::vector<LegendEntry> legend_;
  int64_t width_;
  AppendElements append_;
  std::vector<int64_t> pixels_;  // of a row that is not complete
};

/// Classifies cubes with a trained run.
class Classifier {
 public:
  static absl::StatusOr<Classifier> open(const TrainedRun& run, const HsiOptions& options,
                                         const TrainedScene& trained) {
    const HsiModelOptions model = model_options(options, trained.preprocessing.output_bands(), trained.num_classes());
    TRAINKIT_ASSIGN_OR_RETURN(Predictor predictor, run.load([&] { return create_model(model); }, "pixels"));
    return Classifier(options, trained, std::move(predictor));
  }

  /// Classifies all pixels in their order and returns the number of each class, 0 (none) to C.
  absl::StatusOr<at::Tensor> run(const Cube& cube, const Outputs& outputs) const {
    const int64_t pixels = cube.height() * cube.width(), patch_size = options_.used_patch_size();
    at::Tensor counts = at::zeros({trained_.num_classes() + 1}, at::kLong);
    MapRows map(trained_, cube.width(), outputs.map);
    for (int64_t begin = 0; begin < pixels; begin += strip_pixels(cube)) {
      const int64_t end = std::min(pixels, begin + strip_pixels(cube)), first_row = begin / cube.width();
      TRAINKIT_ASSIGN_OR_RETURN(at::Tensor image, prepare_strip(cube, trained_.preprocessing, patch_size / 2, first_row,
                                                                (end - 1) / cube.width() + 1));
      const auto& devices = predictor_.options().devices;
      const FeedKind kind = choose_feed(options_.feed, image, devices);
      const Feed feed(kind, std::move(image), patch_size, devices);
      const at::Tensor places = at::arange(begin, end, at::kLong) - first_row * cube.width();
      TRAINKIT_RETURN_IF_ERROR(
          predictor_
              .run(
                  feed.dataset(places, at::full_like(places, -1), /*augment=*/false),
                  [&](HsiModel& net, const Batch& rows) { return net.forward(feed.patches(rows)).to(at::kFloat); },
                  [&](const Batch&, const at::Tensor& scores) -> absl::Status {
                    const at::Tensor classes = scores.argmax(1) + 1;
                    counts += classes.bincount({}, counts.numel());
                    TRAINKIT_RETURN_IF_ERROR(map.add(classes));
                    TRAINKIT_RETURN_IF_ERROR(outputs.classes(labels_.index_select(0, classes - 1)));
                    return outputs.probabilities(scores.softmax(1));
                  },
                  {.before = begin, .total = pixels})
              .status());
    }
    return counts;
  }

 private:
  Classifier(const HsiOptions& options, const TrainedScene& trained, Predictor predictor)
      : options_(options),
        trained_(trained),
        labels_(at::tensor(trained.label_values, at::kLong)),
        predictor_(std::move(predictor)) {}

  /// See Note [Prediction by strips].
  int64_t strip_pixels(const Cube& cube) const {
    const auto value = static_cast<int64_t>(sizeof(float));
    const int64_t row_bytes = cube.width() * (cube.bands() + trained_.preprocessing.output_bands()) * value;
    const PredictorOptions& predictor = predictor_.options();
    const int64_t batch = predictor.loader.batch_size * std::ssize(predictor.devices);
    const int64_t pixels = std::max<int64_t>(1, kStripBytes / row_bytes) * cube.width();
    return std::max<int64_t>(1, pixels / batch) * batch;
  }

  const HsiOptions& options_;
  const TrainedScene& trained_;
  at::Tensor labels_;
  Predictor predictor_;
};

/// Calls `write` with what appends to map.png, classes.npy and probabilities.npy in `folder`.
absl::Status write_outputs(const std::string& folder, const Cube& cube, const TrainedScene& trained,
                           const std::function<absl::Status(const Outputs&)>& write) {
  const std::vector<int64_t> sizes = {cube.height(), cube.width()};
  const int64_t scale = map_scale(cube.width());
  Outputs outputs;
  const auto with_map = [&](const AppendElements& append) {
    outputs.map = append;
    return write(outputs);
  };
  const auto with_classes = [&](const AppendElements& append) {
    outputs.classes = append;
    return write_png(folder + "/map.png", scale * cube.height(), scale * cube.width(), with_map);
  };
  const auto with_probabilities = [&](const AppendElements& append) {
    outputs.probabilities = append;
    return write_npy(folder + "/classes.npy", at::kLong, sizes, with_classes);
  };
  return write_npy(folder + "/probabilities.npy", at::kFloat, {sizes[0], sizes[1], trained.num_classes()},
                   with_probabilities);
}

absl::Status write_classes(const std::string& folder, const TrainedScene& trained) {
  std::vector<LegendEntry> legend = legend_of(trained.class_names);
  legend.erase(legend.begin());  // every pixel gets a class
  TRAINKIT_RETURN_IF_ERROR(write_file_atomically(Fs::posix(), folder + "/legend.svg", draw_legend(legend)));
  std::string table = "index,label,name\n";
  for (size_t k = 0; k < trained.label_values.size(); ++k) {
    table += fmt::format("{},{},{}\n", k, trained.label_values[k], csv_field(trained.class_names[k]));
  }
  return write_file_atomically(Fs::posix(), folder + "/classes.csv", table);
}

void print_shares(const at::Tensor& counts, const TrainedScene& trained) {
  const auto pixels = static_cast<double>(counts.sum().item<int64_t>());
  print_line(fmt::format("{:>6}  {:<30} {:>9} {:>7}", "label", "class", "pixels", "share"));
  for (int64_t k = 0; k < trained.num_classes(); ++k) {
    const auto count = counts[k + 1].item<int64_t>();
    const auto i = static_cast<size_t>(k);
    print_line(fmt::format("{:>6}  {:<30} {:>9} {:>6.2f}%", trained.label_values[i], trained.class_names[i], count,
                           100 * static_cast<double>(count) / pixels));
  }
}

absl::StatusOr<int> predict(const TrainedRun& run, const HsiOptions& options, const std::string& out) {
  // The run's own settings name the training scene.
  const auto is_given = [&](const char* flag) { return run.parser.source(flag).starts_with("--"); };
  if (!is_given("cube"))
    return bad_option("--cube", "not given", "", "the cube to classify: " + ArraySource::usual_names());
  if (out.empty()) return bad_option("--out", "not given", "", "a folder for the results");
  for (const char* name : {"map.png", "legend.svg", "classes.npy", "probabilities.npy", "classes.csv"}) {
    TRAINKIT_RETURN_IF_ERROR(run.check_output((std::filesystem::path(out) / name).string()));
  }
  TRAINKIT_ASSIGN_OR_RETURN(const std::string stored, run.file(kTrainedSceneFile, "the statistics of its scene"));
  TRAINKIT_ASSIGN_OR_RETURN(const TrainedScene trained, load_trained_scene(stored));
  TRAINKIT_ASSIGN_OR_RETURN(const Cube whole,
                            load_cube(options.scene.cube, is_given("cube_key") ? options.scene.cube_key : ""));
  if (const int64_t scale = map_scale(whole.width()); scale * std::max(whole.height(), whole.width()) > kMostPngSide) {
    return bad_scene(options.scene.cube, "cube", "too large for a map", sizes_text(whole.sizes()),
                     fmt::format("at most {} rows and {} columns", kMostPngSide / scale, kMostPngSide / scale));
  }
  TRAINKIT_ASSIGN_OR_RETURN(const std::vector<double> wavelengths, whole.wavelengths());
  TRAINKIT_ASSIGN_OR_RETURN(const SelectedBands selected,
                            select_bands(whole.bands(), wavelengths, trained, options.scene.cube));
  TRAINKIT_RETURN_IF_ERROR(whole.check_values());
  const Cube cube = whole.with_bands(selected.bands);
  TRAINKIT_ASSIGN_OR_RETURN(const Classifier classifier, Classifier::open(run, options, trained));
  TRAINKIT_RETURN_IF_ERROR(Fs::posix().create_directories(out).status());
  at::Tensor counts;
  TRAINKIT_RETURN_IF_ERROR(write_outputs(out, cube, trained, [&](const Outputs& outputs) -> absl::Status {
    TRAINKIT_ASSIGN_OR_RETURN(counts, classifier.run(cube, outputs));
    return absl::OkStatus();
  }));
  TRAINKIT_RETURN_IF_ERROR(write_classes(out, trained));
  print_shares(counts, trained);
  if (!selected.note.empty()) print_line(selected.note);
  print_line(fmt::format(
      "wrote {0}/map.png, {0}/legend.svg, {0}/classes.npy, {0}/probabilities.npy and {0}/classes.csv", out));
  return 0;
}

}  // namespace

AppCommand predict_command(App& app, const HsiOptions& options) {
  const auto out = std::make_shared<std::string>();
  return command_on_run(
      app,
      {.name = "predict",
       .summary = "Classifies every pixel of a cube with a trained run.",
       .examples = {"trainkit-hsi predict runs/hsi --cube scene.mat --out prediction",
                    "trainkit-hsi predict runs/hsi/checkpoints/step-00000400 --cube scene.hdr --out prediction",
                    "trainkit-hsi predict runs/hsi --cube scene.npy --out prediction --device cpu --parallel 2"},
       .flags = {"cube", "cube_key", "out", "overwrite"},
       .add_flags =
           [out](ConfigParser& parser) {
             parser.set_help("overwrite", "Replace earlier results in --out.");
             parser.add(
                 "out", out.get(),
                 {.help =
                      "Folder for map.png, legend.svg, classes.npy (height, width), probabilities.npy (height, width, "
                      "classes) and classes.csv.",
                  .group = "Scene",
                  .path = PathKind::kOutput,
                  .metavar = "DIR",
                  .flag_only = true});
           },
       .body = [&options, out](TrainedRun& run) { return predict(run, options, *out); }});
}

}  // namespace trainkit::hsi
