#pragma once
/// A hyperspectral scene: a cube of spectra and the class of some of its pixels.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trainkit::hsi {

struct Scene {
  /// "Salinas-A", or the name of the cube's file.
  std::string name = {};
  /// (height, width, bands) float32, contiguous, on the CPU: the file's own values, all finite.
  at::Tensor cube = {};
  /// (height, width) int64: 0 is unlabelled, 1..C are classes, each of which has a pixel.
  at::Tensor labels = {};
  /// Value in the file of class 1..C, ascending: {1, 10, 11, 12, 13, 14} for Salinas-A.
  std::vector<int64_t> label_values = {};
  /// Names of class 1..C: those of a known scene, else "class 10" with the value in the file.
  std::vector<std::string> class_names = {};
  /// The files that it was read from.
  std::string cube_path = {};
  std::string labels_path = {};

  int64_t height() const { return cube.size(0); }
  int64_t width() const { return cube.size(1); }
  int64_t bands() const { return cube.size(2); }
  int64_t num_classes() const { return static_cast<int64_t>(label_values.size()); }
};

struct SceneOptions {
  /// Folder of a known scene's files.
  std::string data_dir = {};
  /// Name of a known scene (case, '-', '_' and spaces do not matter), or "auto": the one known scene in data_dir.
  std::string scene = "auto";
  /// Any other scene: the files of its cube and its ground truth, `.mat`, `.npy` or ENVI's `.hdr`. May be the same
  /// `.mat`.
  std::string cube = {};
  std::string gt = {};
  /// Their variables in a `.mat`; empty: the only one that it can be, which is the only array of numbers of three
  /// dimensions for the cube, of two dimensions with whole numbers for the ground truth.
  std::string cube_key = {};
  std::string gt_key = {};
};

/// A scene of the literature whose files are known by name.
struct KnownScene {
  std::string_view name;
  std::vector<std::string_view> cube_files, cube_keys;
  std::vector<std::string_view> gt_files, gt_keys;
  /// (label in the file, name).
  std::vector<std::pair<int64_t, std::string_view>> classes;
};

/// Indian Pines, Pavia University, Pavia Centre, Salinas, Salinas-A, KSC, Botswana, Houston 2013.
const std::vector<KnownScene>& known_scenes();

/// Reads and checks a scene. Errors: exit code 2 (cli.value) for options that contradict each other or name nothing; 4
/// for the files: those of MatFile, read_npy and read_envi; data.scene, which says what is wrong and where: sizes of
/// cube and ground truth that differ (a transposed one is named), a NaN or infinite value with its pixel and band, a
/// label that is no whole number or negative, no labelled pixel, a single class.
absl::StatusOr<Scene> load_scene(const SceneOptions& options);

/// The scene of a cube (height, width, bands), any real dtype, and a ground truth (height, width), checked as above;
/// for arrays that were not read by load_scene. `known` gives names to the classes.
absl::StatusOr<Scene> make_scene(std::string name, const at::Tensor& cube, const at::Tensor& ground_truth,
                                 const KnownScene* known = nullptr);

/// The error of a flag's value (exit code 2).
absl::Status bad_option(const std::string& flag, const std::string& problem, const std::string& got = "",
                        const std::string& expected = "", const std::string& hint = "");

struct DemoSceneOptions {
  /// Indian Pines' size.
  int64_t height = 145, width = 145, bands = 200, classes = 16;
  uint64_t seed = 0;
};

/// Writes demo.mat (cube, uint16) and demo_gt.mat (ground truth, uint8) into the folder, which exists: fields of one
/// class each with unlabelled paths between them, spectra of smooth random curves that some classes share in part,
/// pixels mixed with their neighbours' at the borders, brightness that drifts over the scene, and noise. About 60 % of
/// the pixels are labelled. A function of the options alone.
absl::Status write_demo_scene(const std::string& dir, const DemoSceneOptions& options = {});

}  // namespace trainkit::hsi
