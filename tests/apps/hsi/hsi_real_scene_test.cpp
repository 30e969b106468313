// Real scenes, if available.
#include <filesystem>

#include "hsi_classification/scene.h"
#include "hsi_classification/split.h"
#include "test_util.h"
#include "trainkit/arrays/mat.h"

using namespace trainkit;
using namespace trainkit::hsi;

TEST_CASE("Salinas-A is found among the ground truths of other scenes", "[hsi][scene]") {
  if (test::data_dir().empty()) TRAINKIT_SKIP("no TRAINKIT_TEST_DATA");
  const auto scene = load_scene({.data_dir = test::data_dir() + "/hsi"});
  REQUIRE(scene.status() == absl::OkStatus());
  CHECK(scene->name == "Salinas-A");
  const at::Tensor cube = scene->cube.rows(0, scene->height()).value();
  CHECK(cube.sizes() == at::IntArrayRef{83, 86, 204});
  CHECK(cube.min().item<float>() == -9);
  CHECK(cube.max().item<float>() == 8373);
  CHECK(scene->label_values == std::vector<int64_t>{1, 10, 11, 12, 13, 14});
  CHECK(scene->class_names[1] == "Corn senesced green weeds");
  const at::Tensor counts = torch::bincount(scene->labels.flatten(), {}, 7);
  CHECK(at::equal(counts.narrow(0, 1, 6), torch::tensor({391, 1343, 616, 1525, 674, 799})));

  const auto split = make_split(*scene, {.train_ratio = 0.1});
  REQUIRE(split.ok());
  CHECK(split->train.numel() + split->validation.numel() == 535);
  CHECK(split->test.numel() == 5348 - 535);
  CHECK(leak(*split, 83, 86, 9) > 0.9);
  const auto disjoint = make_split(*scene, {.mode = "disjoint", .train_ratio = 0.1, .block_size = 8});
  REQUIRE(disjoint.ok());
  INFO(leak(*disjoint, 83, 86, 9) << " of " << disjoint->test.numel() << ", " << disjoint->train.numel()
                                  << " trained on");
  CHECK(leak(*disjoint, 83, 86, 9) < 0.6 * leak(*split, 83, 86, 9));
}

TEST_CASE("Ground truths of other scenes have their labels, and a cube and its map are read from one file",
          "[hsi][scene]") {
  if (test::data_dir().empty()) TRAINKIT_SKIP("no TRAINKIT_TEST_DATA");
  const std::string folder = test::data_dir() + "/hsi/";
  for (const auto& [file, classes] :
       {std::pair("Indian_pines_gt.mat", 16), std::pair("PaviaU_gt.mat", 9), std::pair("Salinas_gt.mat", 16)}) {
    CAPTURE(file);
    const auto mat = MatFile::open(folder + file).value();
    const at::Tensor truth = mat.read(mat.variables()[0].name).value();
    const auto scene = make_scene(file, torch::zeros({truth.size(0), truth.size(1), 1}), truth);
    REQUIRE(scene.ok());
    CHECK(scene->num_classes() == classes);
  }
  // 0 means "unlabelled": a map of two values, one of them 0, has one class.
  const auto hydice = load_scene({.cube = folder + "HYDICE_data.mat", .gt = folder + "HYDICE_data.mat"});
  INFO(error_line(hydice.status()));
  CHECK(error_line(hydice.status()).find("a single class") != std::string::npos);
  for (const auto& [file, background] : {std::pair("HYDICE_data.mat", 7981), {"abu-urban-2.mat", 9845}}) {
    CAPTURE(file);
    const auto scene = load_scene({.cube = folder + file, .gt = folder + file, .background = std::nullopt});
    REQUIRE(scene.ok());
    CHECK(scene->label_values == std::vector<int64_t>{0, 1});
    CHECK(scene->labels.min().item<int64_t>() == 1);
    CHECK(scene->labels.eq(1).sum().item<int64_t>() == background);  // the whole cube is labelled
  }
}
