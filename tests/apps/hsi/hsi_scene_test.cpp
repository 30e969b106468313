#include <filesystem>
#include <limits>

#include "apps/hsi/hsi_place.h"
#include "arrays/mat_bytes.h"
#include "hsi_classification/find_scene.h"
#include "hsi_classification/scene.h"
#include "matlab73/write_mat73.h"
#include "test_util.h"
#include "trainkit/arrays/array_file.h"
#include "trainkit/arrays/mat.h"

using namespace trainkit;
using namespace trainkit::hsi;
using test::values_of;

namespace {

using Variables = std::vector<std::pair<std::string, at::Tensor>>;

void write(const std::string& path, const Variables& variables) {
  REQUIRE(write_mat(path, variables) == absl::OkStatus());
}

at::Tensor some_cube() { return torch::arange(5 * 4 * 3, torch::kShort).view({5, 4, 3}) - 10; }

/// Classes 3 and 7 on some of the pixels.
at::Tensor some_truth() {
  at::Tensor truth = torch::zeros({5, 4}, torch::kByte);
  truth.select(0, 1).fill_(3);
  truth.select(0, 3).fill_(7);
  return truth;
}

std::string line_of(const absl::StatusOr<Scene>& scene) { return scene.ok() ? "" : error_line(scene.status()); }

}  // namespace

TEST_CASE("A scene has its cube unchanged and its classes numbered from 1", "[hsi][scene]") {
  const test::TempDir folder;
  write(folder / "a.mat", {{"a", some_cube()}});
  REQUIRE(test::write_mat73(folder / "b.mat", Variables{{"b", some_truth()}}) == absl::OkStatus());
  const auto scene = load_scene({.cube = folder / "a.mat", .gt = folder / "b.mat"});
  REQUIRE(scene.status() == absl::OkStatus());
  CHECK(scene->name == "a");
  const at::Tensor values = values_of(scene->cube);
  CHECK(values.scalar_type() == at::kFloat);
  CHECK(values.is_contiguous());
  CHECK(at::equal(values, some_cube().to(at::kFloat)));
  CHECK(scene->label_values == std::vector<int64_t>{3, 7});
  CHECK(scene->class_names == std::vector<std::string>{"class 3", "class 7"});
  CHECK(scene->num_classes() == 2);
  const at::Tensor expected = torch::zeros({5, 4}, torch::kLong);
  expected.select(0, 1).fill_(1);
  expected.select(0, 3).fill_(2);
  CHECK(at::equal(scene->labels, expected));
}

TEST_CASE("A ground truth without unlabelled pixels has no class 0", "[hsi][scene]") {
  const at::Tensor truth = torch::full({5, 4}, 2.0, torch::kDouble);
  truth.select(0, 0).fill_(9);
  const auto scene = make_scene("s", some_cube(), truth);
  REQUIRE(scene.status() == absl::OkStatus());
  CHECK(scene->label_values == std::vector<int64_t>{2, 9});
  CHECK(scene->labels.min().item<int64_t>() == 1);
  CHECK(scene->labels[0][0].item<int64_t>() == 2);
}

TEST_CASE("Any label can be the background, or none", "[hsi][scene]") {
  const auto with = [](std::optional<int64_t> background) {
    return make_scene("s", some_cube(), some_truth(), nullptr, background);
  };
  const auto all = with(std::nullopt), without_seven = with(7);
  REQUIRE(all.status() == absl::OkStatus());
  CHECK(all->label_values == std::vector<int64_t>{0, 3, 7});
  CHECK(all->class_names[0] == "class 0");
  CHECK(at::equal(all->labels.select(1, 0), torch::tensor({1, 2, 1, 3, 1})));
  REQUIRE(without_seven.status() == absl::OkStatus());
  CHECK(without_seven->label_values == std::vector<int64_t>{0, 3});
  CHECK(at::equal(without_seven->labels.select(1, 0), torch::tensor({1, 2, 1, 0, 1})));
  const auto absent = with(5);
  CHECK(exit_code(absent.status()) == ExitCode::kUsage);
  CHECK(line_of(absent).find("--background_class: no pixel has this label (got '5'") != std::string::npos);
  const at::Tensor two = torch::zeros({5, 4}, torch::kByte);
  two[1][1] = 1;
  CHECK(error_of(make_scene("s", some_cube(), two).status())->hint == "--background_class none learns every label");
  CHECK(make_scene("s", some_cube(), two, nullptr, std::nullopt).ok());
}

TEST_CASE("Names of the classes replace those of labels, and their number is checked", "[hsi][scene]") {
  const test::TempDir folder;
  write(folder / "a.mat", {{"a", some_cube()}});
  write(folder / "b.mat", {{"b", some_truth()}});
  SceneOptions options{.cube = folder / "a.mat", .gt = folder / "b.mat", .class_names = {"soil", "water"}};
  CHECK(load_scene(options)->class_names == std::vector<std::string>{"soil", "water"});
  options.background = std::nullopt;
  const auto wrong = load_scene(options);
  CHECK(exit_code(wrong.status()) == ExitCode::kUsage);
  CHECK(line_of(wrong).find("--class_names: not as many names as classes (got '2', expected 3 names, for the labels 0, "
                            "3, 7)") != std::string::npos);
}

TEST_CASE("Each known scene is found by its usual file names and keys", "[hsi][scene]") {
  for (const KnownScene& known : known_scenes()) {
    CAPTURE(std::string(known.name));
    const test::TempDir folder;
    const at::Tensor cube = torch::rand({7, 6, 3}), truth = torch::zeros({7, 6}, torch::kByte);
    for (size_t i = 0; i < known.classes.size(); ++i) truth.view({-1})[i] = known.classes[i].first;
    // A second array that would match if the key were unknown.
    write(folder / (std::string(known.cube_files[0]) + ".mat"),
          {{"other", cube + 1}, {std::string(known.cube_keys[0]), cube}});
    write(folder / (std::string(known.gt_files[0]) + ".mat"),
          {{"other", truth + 1}, {std::string(known.gt_keys[0]), truth}});
    for (const std::string& name : {std::string("auto"), std::string(known.name)}) {
      const auto scene = load_scene({.data_dir = folder.path().string(), .scene = name});
      REQUIRE(scene.status() == absl::OkStatus());
      CHECK(scene->name == known.name);
      CHECK(at::equal(values_of(scene->cube), cube));
      REQUIRE(scene->num_classes() == static_cast<int64_t>(known.classes.size()));
      for (size_t i = 0; i < known.classes.size(); ++i) {
        CHECK(scene->label_values[i] == known.classes[i].first);
        CHECK(scene->class_names[i] == known.classes[i].second);
      }
    }
  }
  CHECK(find_known_scene("salinas_a")->name == "Salinas-A");
  CHECK(find_known_scene("SALINAS")->name == "Salinas");
  CHECK(find_known_scene("paviauniversity")->name == "Pavia University");
  for (const char* name : {"pavia_u", "PaviaU"}) CHECK(find_known_scene(name)->name == "Pavia University");
  CHECK(find_known_scene("PaviaC")->name == "Pavia Centre");
  CHECK(find_known_scene("Salinas-B") == nullptr);
}

TEST_CASE("A key is found automatically only if it is the only one", "[hsi][scene]") {
  const test::TempDir folder;
  const std::string a = folder / "a.mat", b = folder / "b.mat";
  const at::Tensor cube = some_cube(), truth = some_truth();
  const auto load = [&](const std::string& cube_key = "", const std::string& gt_key = "") {
    return load_scene({.cube = a, .gt = b, .cube_key = cube_key, .gt_key = gt_key});
  };
  write(a, {{"wavelengths", torch::rand({1, 3})}, {"T", cube}, {"note", torch::ones({1, 1})}});
  write(b, {{"weights", torch::rand({9, 9})}, {"truth", truth.to(at::kDouble)}, {"n", torch::ones({1, 1})}});
  REQUIRE(load().status() == absl::OkStatus());
  write(b, {{"other", torch::ones({6, 6})}, {"truth", truth}});
  REQUIRE(load().status() == absl::OkStatus());  // the cube's sizes decide
  write(a, {{"T", cube}, {"U", cube}});
  CHECK(line_of(load()).find("more than one variable can be the cube (got 'T, U'") != std::string::npos);
  CHECK(load("U").ok());
  CHECK(line_of(load("V")).find("'V': no such variable (expected 'T', 'U')") != std::string::npos);
  write(b, {{"one", truth}, {"two", truth}});
  CHECK(line_of(load("U")).find("more than one variable can be the ground truth (got 'one, two'") != std::string::npos);
  CHECK(load("U", "two").ok());
  write(a, {{"flat", torch::ones({5, 4})}});
  CHECK(line_of(load()).find("no variable can be the cube (got 'flat (5x4 single)'") != std::string::npos);
  write(a, {{"cube", cube}, {"truth", truth}});
  CHECK(load_scene({.cube = a, .gt = a}).ok());
}

TEST_CASE("NumPy arrays and ENVI pairs give the same scene as MATLAB files", "[hsi][scene]") {
  const test::TempDir folder;
  const at::Tensor cube = some_cube(), truth = some_truth();
  write(folder / "a.mat", {{"a", cube}});
  write(folder / "b.mat", {{"b", truth}});
  REQUIRE(write_npy(folder / "a.npy", cube).ok());
  REQUIRE(write_npy(folder / "b.npy", truth).ok());
  const auto envi = [&](const std::string& name, const at::Tensor& array, int type) {
    const int64_t bands = array.dim() == 3 ? array.size(2) : 1;
    test::write_bytes(folder / (name + ".hdr"), "ENVI\nsamples = 4\nlines = 5\nbands = " + std::to_string(bands) +
                                                    "\ndata type = " + std::to_string(type) + "\ninterleave = bip\n");
    test::write_bytes(folder / (name + ".raw"), {static_cast<const char*>(array.data_ptr()), array.nbytes()});
  };
  envi("a", cube, 2);
  envi("b", truth, 1);
  const auto expected = load_scene({.cube = folder / "a.mat", .gt = folder / "b.mat"}).value();
  for (const std::string one : {".mat", ".npy", ".hdr"}) {
    for (const std::string other : {".mat", ".npy", ".hdr"}) {
      CAPTURE(one, other);
      const auto scene = load_scene({.cube = folder / ("a" + one), .gt = folder / ("b" + other)});
      REQUIRE(scene.status() == absl::OkStatus());
      CHECK(at::equal(values_of(scene->cube), values_of(expected.cube)));
      CHECK(at::equal(scene->labels, expected.labels));
    }
  }
}

TEST_CASE("A scene that is unsuitable for training is refused with the location of the error", "[hsi][scene]") {
  const at::Tensor cube = some_cube().to(at::kDouble), truth = some_truth().to(at::kDouble);
  const auto cube_with = [&](double value) {
    at::Tensor changed = cube.clone();
    changed[2][1][0] = value;
    return changed;
  };
  const auto truth_with = [&](double value) {
    at::Tensor changed = truth.clone();
    changed[2][1] = value;
    return changed;
  };
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  struct Fault {
    at::Tensor cube, truth;
    std::string problem;
  };
  const std::vector<Fault> faults = {
      {cube, truth.t(),
       "ground truth: does not have the cube's height and width (got '4 x 5', expected 5 x 4 of a cube of 5 x 4 x 3)"},
      {cube.permute({2, 0, 1}), truth, "ground truth: does not have the cube's height"},
      {cube, torch::ones({6, 4}), "ground truth: does not have the cube's height"},
      {cube.select(2, 0), truth, "cube: wrong number of dimensions (got '5 x 4', expected height x width x bands)"},
      {cube, cube, "ground truth: wrong number of dimensions"},
      {torch::empty({5, 4, 0}), truth, "cube: has no pixel"},
      {cube.to(at::kComplexFloat), truth, "cube: contains complex numbers"},
      {cube_with(nan), truth, "cube: a value is not finite (got 'nan at row 2, column 1, band 0'"},
      {cube_with(-inf), truth, "cube: a value is not finite (got '-inf at row 2, column 1, band 0'"},
      {cube_with(1e300), truth, "cube: a value is not finite (got '1e+300 at row 2, column 1, band 0'"},
      {cube_with(1 << 25).to(at::kLong), truth,
       "cube: a whole number is too large for an exact float32 (got '33554432 at row 2, column 1, band 0'"},
      {cube, truth_with(1.5), "ground truth: a label is not a whole number in range (got '1.5 at row 2, column 1'"},
      {cube, truth_with(-1), "ground truth: a label is negative (got '-1 at row 2, column 1'"},
      {cube, truth_with(nan), "ground truth: a label is not a whole number in range (got 'nan at row 2"},
      {cube, truth_with(1e18), "ground truth: a label is not a whole number in range"},
      {cube, torch::zeros({5, 4}), "ground truth: no pixel is labelled"},
      {cube, torch::full({5, 4}, 4), "ground truth: a single class"},
      {torch::ones({80, 80, 1}), torch::arange(6400).view({80, 80}), "ground truth: too many classes (got '6399'"},
  };
  for (const Fault& fault : faults) {
    const auto scene = make_scene("name", fault.cube, fault.truth);
    const absl::Status status = scene.ok() ? scene->cube.check_values() : scene.status();
    INFO(fault.problem << " / " << error_line(status));
    CHECK(exit_code(status) == ExitCode::kData);
    CHECK(error_line(status).find("error[data.scene] name: " + fault.problem) != std::string::npos);
  }
  CHECK(error_of(make_scene("n", cube, truth.t()).status())->hint ==
        "the ground truth is transposed: swap rows and columns");
  CHECK(error_of(make_scene("n", cube.permute({2, 0, 1}), truth).status())->hint ==
        "the cube has its bands first: move them to the end");
  CHECK(error_of(make_scene("n", cube.permute({2, 1, 0}), truth).status())->hint.find("the cube is transposed") == 0);
}

TEST_CASE("Missing or incomplete options are usage errors", "[hsi][scene]") {
  const test::TempDir folder;
  const std::vector<std::pair<SceneOptions, std::string>> faults = {
      {{}, "--data_dir: missing"},
      {{.cube = "a.mat"}, "--gt: missing"},
      {{.gt = "a.mat"}, "--cube: missing"},
      {{.data_dir = folder.path().string(), .scene = "Salinas-B"}, "--scene: not a known scene (got 'Salinas-B'"},
      {{.cube = "a.tif", .gt = "b.mat"}, "--cube: unsupported file type (got 'a.tif', expected .npy, .npz, .mat, .h5"},
  };
  for (const auto& [options, problem] : faults) {
    const auto scene = load_scene(options);
    INFO(problem << " / " << line_of(scene));
    CHECK(exit_code(scene.status()) == ExitCode::kUsage);
    CHECK(line_of(scene).find(problem) != std::string::npos);
  }
  CHECK(line_of(load_scene({.data_dir = folder.path().string()}))
            .find("no known scene (got 'no file with a known name'") != std::string::npos);
  write(folder / "PaviaU_gt.mat", {{"paviaU_gt", some_truth()}});
  CHECK(line_of(load_scene({.data_dir = folder.path().string()})).find("got 'PaviaU_gt.mat without its cube'") !=
        std::string::npos);
  write(folder / "PaviaU.mat", {{"paviaU", some_cube()}});
  CHECK(load_scene({.data_dir = folder.path().string()}).ok());
  REQUIRE(write_demo_scene(folder.path().string(), {.height = 20, .width = 20, .bands = 4, .classes = 3}).ok());
  CHECK(line_of(load_scene({.data_dir = folder.path().string()}))
            .find("more than one known scene (got 'Pavia University, the demo scene'") != std::string::npos);
  CHECK(load_scene({.data_dir = folder.path().string(), .scene = "pavia university"}).ok());
}

TEST_CASE("The demo scene has the size of Indian Pines, depends only on its seed, and has every class",
          "[hsi][scene]") {
  const test::TempDir folder;
  REQUIRE(write_demo_scene(folder.path().string()) == absl::OkStatus());
  const auto file = MatFile::open(folder / "demo.mat").value();
  CHECK(file.variables()[0].type == "uint16");
  const auto scene = load_scene({.data_dir = folder.path().string()});
  REQUIRE(scene.status() == absl::OkStatus());
  CHECK(scene->cube.sizes() == std::vector<int64_t>{145, 145, 200});
  CHECK(scene->num_classes() == 16);
  const at::Tensor counts = torch::bincount(scene->labels.flatten(), {}, 17);
  CHECK(counts.narrow(0, 1, 16).min().item<int64_t>() >= 30);
  const double labelled = scene->labels.gt(0).to(torch::kDouble).mean().item<double>();
  CHECK(labelled > 0.5);
  CHECK(labelled < 0.75);
  // Neighbours are similar: most labelled pixels have the class of their right neighbour, and mixed pixels make up the
  // rest.
  const at::Tensor left = scene->labels.narrow(1, 0, 144), right = scene->labels.narrow(1, 1, 144);
  CHECK(left.eq(right).to(torch::kDouble).mean().item<double>() > 0.85);
  // The nearest class mean is often correct, but not always: the classes overlap as crops do.
  const at::Tensor pixels = values_of(scene->cube).view({-1, 200}), labels = scene->labels.flatten();
  std::vector<at::Tensor> means;
  for (int c = 1; c <= 16; ++c) means.push_back(pixels.index({labels.eq(c)}).mean(0));
  const at::Tensor nearest = torch::cdist(pixels, torch::stack(means)).argmin(1) + 1;
  const double right_share = nearest.eq(labels).index({labels.gt(0)}).to(torch::kDouble).mean().item<double>();
  INFO(right_share);
  CHECK(right_share > 0.4);
  CHECK(right_share < 0.95);

  const test::TempDir again, other;
  REQUIRE(write_demo_scene(again.path().string()).ok());
  REQUIRE(write_demo_scene(other.path().string(), {.seed = 1}).ok());
  const auto cube_of = [](const test::TempDir& dir) {
    return values_of(load_scene({.data_dir = dir.path().string()})->cube);
  };
  CHECK(at::equal(cube_of(again), values_of(scene->cube)));
  CHECK_FALSE(at::equal(cube_of(other), values_of(scene->cube)));
}
