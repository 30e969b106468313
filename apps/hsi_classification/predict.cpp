#include "hsi_classification/predict.h"

#include <ATen/Functions.h>
#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "hsi_classification/feed.h"
#include "hsi_classification/maps.h"
#include "hsi_classification/trained_scene.h"
#include "trainkit/app/placement.h"
#include "trainkit/arrays/array_file.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/io/table.h"

namespace trainkit::hsi {
namespace {

struct Prediction {
  at::Tensor classes;        ///< (height, width) int64, 1..C
  at::Tensor probabilities;  ///< (height, width, C) float32
};

absl::StatusOr<Prediction> classify(const TrainedRun& run, const HsiOptions& options, const TrainedScene& trained,
                                    const at::Tensor& cube) {
  const int64_t height = cube.size(0), width = cube.size(1), pixels = height * width;
  const at::Tensor prepared = apply_preprocessing(cube, trained.preprocessing);
  const int64_t patch_size = options.used_patch_size();
  at::Tensor image = pad_mirrored(prepared, patch_size / 2).contiguous();
  const FeedKind kind = choose_feed(options.feed, image, run.predictor.devices);
  const Feed feed(kind, std::move(image), patch_size, run.predictor.devices);
  const HsiModelOptions model = model_options(options, trained.model_bands(), trained.num_classes());
  TRAINKIT_ASSIGN_OR_RETURN(const Predictor predictor, run.load([&] { return create_model(model); }, "pixels"));

  const at::Tensor all = at::arange(pixels, at::kLong);
  Prediction prediction{at::empty({pixels}, at::kLong), at::empty({pixels, trained.num_classes()}, at::kFloat)};
  int64_t done = 0;
  TRAINKIT_RETURN_IF_ERROR(
      predictor
          .run(
              feed.dataset(all, at::full_like(all, -1), /*augment=*/false),
              [&](HsiModel& network, const Batch& rows) { return network.forward(feed.patches(rows)).to(at::kFloat); },
              [&](const Batch& rows, const at::Tensor& scores) {
                prediction.classes.narrow(0, done, rows.size()).copy_(scores.argmax(1) + 1);
                prediction.probabilities.narrow(0, done, rows.size()).copy_(scores.softmax(1));
                done += rows.size();
                return absl::OkStatus();
              })
          .status());
  prediction.classes = prediction.classes.view({height, width});
  prediction.probabilities = prediction.probabilities.view({height, width, trained.num_classes()});
  return prediction;
}

absl::Status write_prediction(const std::string& folder, const Prediction& prediction, const TrainedScene& trained) {
  std::vector<LegendEntry> legend = legend_of(trained.class_names);
  std::string table = "index,label,name\n";
  for (size_t k = 0; k < trained.label_values.size(); ++k) {
    table += fmt::format("{},{},{}\n", k, trained.label_values[k], csv_field(trained.class_names[k]));
  }
  const at::Tensor labels = at::tensor(trained.label_values, at::kLong)
                                .index_select(0, prediction.classes.flatten() - 1)
                                .view(prediction.classes.sizes());
  TRAINKIT_RETURN_IF_ERROR(Fs::posix().create_directories(folder).status());
  TRAINKIT_RETURN_IF_ERROR(write_png(folder + "/map.png", draw_map(prediction.classes, legend)));
  legend.erase(legend.begin());  // every pixel gets a class
  TRAINKIT_RETURN_IF_ERROR(write_file_atomically(Fs::posix(), folder + "/legend.svg", draw_legend(legend)));
  TRAINKIT_RETURN_IF_ERROR(write_npy(folder + "/classes.npy", labels));
  TRAINKIT_RETURN_IF_ERROR(write_npy(folder + "/probabilities.npy", prediction.probabilities));
  return write_file_atomically(Fs::posix(), folder + "/classes.csv", table);
}

void print_shares(const Prediction& prediction, const TrainedScene& trained) {
  const at::Tensor counts = prediction.classes.flatten().bincount({}, trained.num_classes() + 1);
  const auto pixels = static_cast<double>(prediction.classes.numel());
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
    return bad_option("--cube", "not given", "", "the cube to classify: .mat, .npy, ENVI .hdr or .safetensors");
  if (out.empty()) return bad_option("--out", "not given", "", "a folder for the results");
  for (const char* name : {"map.png", "legend.svg", "classes.npy", "probabilities.npy", "classes.csv"}) {
    TRAINKIT_RETURN_IF_ERROR(run.check_output((std::filesystem::path(out) / name).string()));
  }
  TRAINKIT_ASSIGN_OR_RETURN(const std::string stored, run.file(kTrainedSceneFile, "the statistics of its scene"));
  TRAINKIT_ASSIGN_OR_RETURN(const TrainedScene trained, load_trained_scene(stored));
  TRAINKIT_ASSIGN_OR_RETURN(const Cube cube,
                            load_cube(options.scene.cube, is_given("cube_key") ? options.scene.cube_key : ""));
  TRAINKIT_ASSIGN_OR_RETURN(const SelectedBands bands, select_bands(cube, trained, options.scene.cube));
  TRAINKIT_ASSIGN_OR_RETURN(const Prediction prediction, classify(run, options, trained, bands.values));
  TRAINKIT_RETURN_IF_ERROR(write_prediction(out, prediction, trained));
  print_shares(prediction, trained);
  if (!bands.note.empty()) print_line(bands.note);
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
