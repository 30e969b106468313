// trainkit-hsi export as a user runs it.
#include <ATen/Functions.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "apps/hsi/hsi_place.h"
#include "hsi_classification/preprocess.h"
#include "onnx_runtime.h"
#include "trainkit/arrays/array_file.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

Ended run_trainer(const HsiPlace& place, const std::vector<std::string>& flags) {
  return run_to_end("trainkit-hsi", flags, place.dir.path().string());
}

}  // namespace

TEST_CASE("An exported network gives predict's probabilities from the raw cube", "[apps][hsi][onnx]") {
  if (!has_onnx_runtime()) TRAINKIT_SKIP("no Python with onnx and onnxruntime");
  const HsiPlace place;
  const std::string model = GENERATE(as<std::string>(), "mlp", "cnn2d", "cnn3d", "hybridsn", "ssrn");
  INFO(model);
  std::vector<std::string> flags = {"--model", model, "--max_steps", "4", "--patch_size", model == "mlp" ? "1" : "9"};
  if (model == "hybridsn") flags.insert(flags.end(), {"--pca", "15"});
  const Ended trained = run_trainer(place, place.flags("run", flags));
  INFO(trained.errors);
  REQUIRE(trained.code == 0);
  const std::string before = folder_contents(place.dir / "run");
  const Ended predicted =
      run_trainer(place, {"predict", place.dir / "run", "--cube", place.dir / "demo.mat", "--out", place.dir / "out"});
  REQUIRE(predicted.code == 0);
  const Ended exported = run_trainer(place, {"export", place.dir / "run", place.dir / "model.onnx"});
  INFO(exported.errors);
  REQUIRE(exported.code == 0);
  CHECK(folder_contents(place.dir / "run") == before);

  const at::Tensor probabilities = read_npy(place.dir / "out" + "/probabilities.npy").value();
  const at::Tensor cube = values_of(load_cube(place.dir / "demo.mat").value());
  const int64_t width = cube.size(1), p = model == "mlp" ? 1 : 9;
  const at::Tensor image = padded(cube, p / 2);
  std::vector<at::Tensor> patches, expected;
  for (int64_t pixel = 0; pixel < cube.size(0) * width; pixel += 23) {
    patches.push_back(image.narrow(0, pixel / width, p).narrow(1, pixel % width, p));
    expected.push_back(probabilities[pixel / width][pixel % width]);
  }
  const OnnxRun run = run_onnx(place.dir / "model.onnx", {{"patches", at::stack(patches).contiguous()}});
  CHECK(largest_difference(run["probabilities"], at::stack(expected)) <= 1e-4);
  CHECK(largest_difference(run["scores"].softmax(1), run["probabilities"]) <= 1e-6);
  CHECK(run.facts["metadata"]["program"] == "trainkit-hsi");
  CHECK(run.facts["metadata"]["class_names"].get<std::string>().starts_with("[\"class 1\""));
}

TEST_CASE("export refuses a wrong command line and keeps an existing file", "[apps][hsi][onnx]") {
  const HsiPlace place;
  REQUIRE(run_trainer(place, place.flags("run", {"--max_steps", "2"})).code == 0);
  const std::string out = place.dir / "model.onnx";
  const auto refused = [&](const std::vector<std::string>& words) {
    std::vector<std::string> all = {"export", place.dir / "run"};
    all.insert(all.end(), words.begin(), words.end());
    const Ended ended = run_trainer(place, all);
    CHECK(ended.code == 2);
    return ended.errors;
  };
  CHECK_THAT(refused({}), Catch::Contains("OUT.onnx: not given"));
  CHECK_THAT(refused({"model.pt"}), Catch::Contains("unknown file extension"));
  CHECK_FALSE(std::filesystem::exists(out));
  REQUIRE(run_trainer(place, {"export", place.dir / "run", out}).code == 0);
  const std::string first = read_text(out);
  CHECK_THAT(refused({out}), Catch::Contains("exists already"));
  CHECK(read_text(out) == first);
  CHECK(run_to_end("trainkit", {"export", place.dir / "run", out, "--overwrite"}, place.dir.path().string()).code == 0);
  CHECK(read_text(out) == first);
  const std::string same = place.dir / "same.onnx";
  const Ended formatted =
      run_to_end("trainkit", {"export", place.dir / "run", same, "--format", "onnx"}, place.dir.path().string());
  INFO(formatted.errors);
  CHECK(formatted.code == 0);
  CHECK(read_text(same) == first);
}
