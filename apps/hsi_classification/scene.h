#pragma once
/// A hyperspectral scene: a cube of spectra, and classes of some of its pixels.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hsi_classification/cube.h"

namespace trainkit::hsi {

struct Scene {
  /// "Salinas-A", or the name of the cube's file.
  std::string name = {};
  Cube cube = {};
  /// (height, width) int64: 0 is unlabelled, 1..C are classes, each with at least one pixel.
  at::Tensor labels = {};
  /// Label in the file of unlabelled pixels; nullopt: every label is a class.
  std::optional<int64_t> background = 0;
  /// Label in the file for class 1..C, ascending: {1, 10, 11, 12, 13, 14} for Salinas-A.
  std::vector<int64_t> label_values = {};
  /// Names of class 1..C: the user's, those of a known scene, else "class 10" with the label in the file.
  std::vector<std::string> class_names = {};
  /// Centre of each band in nanometres; empty if the file of the cube does not have them.
  std::vector<double> wavelengths = {};
  /// File of the cube.
  std::string cube_path = {};
  /// Files of the folder that were left out; empty if there are none.
  std::string note = {};

  int64_t height() const { return cube.height(); }
  int64_t width() const { return cube.width(); }
  int64_t bands() const { return cube.bands(); }
  int64_t num_classes() const { return static_cast<int64_t>(label_values.size()); }
};

struct SceneOptions {
  /// Folder of a known scene's files.
  std::string data_dir = {};
  /// Name of a known scene (ignoring case, '-', '_' and spaces), or "auto": the only known scene in data_dir.
  std::string scene = "auto";
  /// Files of any other scene: cube and ground truth, of any format of ArraySource. May be one file.
  std::string cube = {};
  std::string gt = {};
  /// Arrays of a file with several. Empty: the only candidate, which is the only numeric array with three dimensions
  /// for the cube, or with two dimensions and whole numbers for the ground truth.
  std::string cube_key = {};
  std::string gt_key = {};
  /// See Scene. Names of class 1..C; empty: see Scene.
  std::optional<int64_t> background = 0;
  std::vector<std::string> class_names = {};
};

/// A standard scene of the literature, recognised by its file names.
struct KnownScene {
  std::string_view name;
  std::vector<std::string_view> cube_files;
  std::vector<std::string> cube_keys;
  std::vector<std::string_view> gt_files;
  std::vector<std::string> gt_keys;
  /// (label in the file, name).
  std::vector<std::pair<int64_t, std::string_view>> classes;
};

/// Indian Pines, Pavia University, Pavia Centre, Salinas, Salinas-A, KSC, Botswana, Houston 2013.
const std::vector<KnownScene>& known_scenes();

/// Opens a scene and checks all but the values of its cube, which Cube::rows() checks. Errors: exit code 2 (cli.value)
/// for inconsistent options, unknown names, a background that no pixel has and another number of class names than
/// classes. Exit code 4 for files: those of Cube::open and ArraySource; data.scene with the problem and its place:
/// different sizes of cube and ground truth (with a hint if one is transposed), a label that is negative or not a whole
/// number, no labelled pixel, a single class.
absl::StatusOr<Scene> load_scene(const SceneOptions& options);

/// Opens a cube without a ground truth. `key` is SceneOptions::cube_key. Errors: those of load_scene about cubes.
absl::StatusOr<Cube> load_cube(const std::string& path, const std::string& key = {});

/// Makes a scene from a cube and a ground truth (height, width) in memory, checked as above. `known` provides class
/// names; `background` is as in Scene.
absl::StatusOr<Scene> make_scene(std::string name, const Cube& cube, const at::Tensor& ground_truth,
                                 const KnownScene* known = nullptr, std::optional<int64_t> background = 0);

/// Sizes of Indian Pines.
struct PlannedSceneOptions {
  int64_t height = 145, width = 145, bands = 200, classes = 16, labelled = 10'249;
};

/// Makes a scene of random values with equally frequent classes, to plan a run without data.
Scene planned_scene(const PlannedSceneOptions& options);

/// Makes the error of a flag's value (exit code 2).
absl::Status bad_option(const std::string& flag, const std::string& problem, const std::string& got = "",
                        const std::string& expected = "", const std::string& hint = "");

struct DemoSceneOptions {
  /// Size of Indian Pines.
  int64_t height = 145, width = 145, bands = 200, classes = 16;
  uint64_t seed = 0;
};

/// Writes demo.mat (cube, uint16) and demo_gt.mat (ground truth, uint8) into the existing folder `dir`. The scene has
/// fields of one class each, separated by unlabelled paths, smooth random spectra that some classes partly share, mixed
/// pixels at the borders, brightness that varies over the scene, and noise. About 60 % of the pixels are labelled.
/// Depends only on the options.
absl::Status write_demo_scene(const std::string& dir, const DemoSceneOptions& options = {});

}  // namespace trainkit::hsi
