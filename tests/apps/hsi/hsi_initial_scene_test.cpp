// --init_from of trainkit-hsi: bands, statistics and classes keep their meaning.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "apps/hsi/hsi_place.h"
#include "hsi_classification/initial_scene.h"
#include "hsi_classification/models.h"
#include "trainkit/train/weights.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

Scene scene_of(const std::vector<std::string>& classes, std::vector<double> wavelengths = {}) {
  Scene scene;
  torch::manual_seed(1);
  scene.cube = torch::rand({6, 6, 4});
  scene.class_names = classes;
  for (size_t k = 0; k < classes.size(); ++k) scene.label_values.push_back(static_cast<int64_t>(k) + 1);
  scene.wavelengths = std::move(wavelengths);
  return scene;
}

std::shared_ptr<HsiModel> mlp(int64_t classes) {
  return create_model({.model = "mlp", .bands = 4, .patch_size = 1, .num_classes = classes});
}

struct EarlierRun {
  explicit EarlierRun(std::vector<double> wavelengths = {}, int64_t components = 0)
      : scene(scene_of({"corn", "oats"}, std::move(wavelengths))) {
    Cube cube = scene.cube;
    Digest digest;
    fitted = prepare_scene(cube, std::nullopt, components, 0, digest)->preprocessing;
    REQUIRE(save_trained_scene(dir / kTrainedSceneFile, trained_scene(scene, fitted)).ok());
    REQUIRE(save_safetensors(Fs::posix(), dir / "best.safetensors", named_tensors(*model)).ok());
  }
  absl::Status load(HsiModel& into, const Scene& own, RunFacts& facts) const {
    LoadWeightsOptions load;
    const RunWeights from{.run = dir.path().string(), .file = dir / "best.safetensors"};
    absl::Status adapted = adapt_rows(from, own, HsiOptions{}, load, facts);
    return adapted.ok() ? load_weights(into, from.file, load).status() : adapted;
  }
  absl::StatusOr<std::optional<Preprocessing>> preprocessing(const Scene& own, int64_t components = 0) const {
    RunOptions run;
    run.init_from = dir / "best.safetensors";
    HsiOptions options;
    options.net.model = "mlp";
    options.pca = components;
    return earlier_preprocessing(run, options, own);
  }
  TempDir dir;
  Scene scene;
  Preprocessing fitted;
  std::shared_ptr<HsiModel> model = mlp(2);
};

}  // namespace

TEST_CASE("Rows of classes are taken by their names", "[apps][hsi]") {
  const EarlierRun earlier;
  const auto model = mlp(3);
  const at::Tensor fresh = model->named_parameters()["out.weight"].detach().clone();
  RunFacts facts;
  REQUIRE(earlier.load(*model, scene_of({"oats", "rye", "corn"}), facts) == absl::OkStatus());
  const at::Tensor rows = model->named_parameters()["out.weight"].detach();
  const at::Tensor old = earlier.model->named_parameters()["out.weight"].detach();
  CHECK(torch::equal(rows[0], old[1]));
  CHECK(torch::equal(rows[1], fresh[1]));
  CHECK(torch::equal(rows[2], old[0]));
  CHECK_THAT(facts.at(0).second, Catch::Contains("2 of 3 classes by the names in"));
  const absl::Status other = earlier.load(*model, scene_of({"sand", "water", "rock"}), facts);
  CHECK_THAT(error_line(other),
             Catch::Contains("error[weights.meaning]") && Catch::Contains("has none of these classes"));
  std::filesystem::remove(earlier.dir / kTrainedSceneFile);
  const auto same = mlp(2);
  facts.clear();
  REQUIRE(earlier.load(*same, scene_of({"oats", "corn"}), facts).ok());
  CHECK(facts.at(0).first == "warning:");
}

TEST_CASE("A scene is prepared with the statistics of the weights, and other bands are refused", "[apps][hsi]") {
  const EarlierRun earlier({400, 410, 420, 430}, 2);
  const auto taken = earlier.preprocessing(scene_of({"corn"}, {401, 411, 419, 430}), 2);
  REQUIRE(taken.status() == absl::OkStatus());
  REQUIRE(taken->has_value());
  CHECK(torch::equal((*taken)->bands.mean, earlier.fitted.bands.mean));
  CHECK(torch::equal((*taken)->pca->components, earlier.fitted.pca->components));
  CHECK_THAT(error_line(earlier.preprocessing(scene_of({"corn"}, {400, 410, 430, 420}), 2).status()),
             Catch::Contains("wavelengths: band 3 is another one than in this scene"));
  CHECK_THAT(error_line(earlier.preprocessing(scene_of({"corn"}), 0).status()),
             Catch::Contains("pca.components: has another number of principal components than this run"));
}

TEST_CASE("A run that started from weights resumes with their statistics", "[apps][hsi]") {
  const HsiPlace place;
  const auto start = [&](const std::vector<std::string>& flags) {
    const Ended ended = run_to_end("trainkit-hsi", flags, place.dir.path().string());
    INFO(ended.errors);
    REQUIRE(ended.code == 0);
  };
  start(place.flags("first", {"--max_steps", "4"}));
  std::filesystem::remove(place.dir / "demo.mat");
  // Another scene: its own statistics differ.
  REQUIRE(write_demo_scene(place.dir.path().string(), {.height = 30, .width = 32, .bands = 16, .classes = 3, .seed = 9})
              .ok());
  const auto flags = [&](const std::string& name, const std::string& steps) {
    return place.flags(name, {"--max_steps", steps, "--save_every", "4", "--init_from", place.dir / "first",
                              "--scheduler", "constant", "--warmup_steps", "0", "--epochs", "100"});
  };
  start(flags("parts", "4"));
  start({"--output_dir", place.dir / "parts", "--resume", "latest", "--max_steps", "8"});
  start(flags("whole", "8"));
  CHECK(checkpoint_bytes(place.dir / "parts", "00000008") == checkpoint_bytes(place.dir / "whole", "00000008"));
  const std::string scene = "/scene.safetensors";
  CHECK(read_text(place.dir / "parts" + scene) == read_text(place.dir / "whole" + scene));
}
