#include "hsi_classification/scene.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "hsi_classification/find_scene.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"

namespace trainkit::hsi {
namespace {

absl::Status check_truth_kind(const std::string& name, const at::Tensor& truth) {
  if (truth.is_complex()) return bad_scene(name, "ground truth", "contains complex numbers");
  if (truth.dim() != 2) {
    return bad_scene(name, "ground truth", "wrong number of dimensions", sizes_text(truth.sizes()), "height x width");
  }
  if (truth.numel() == 0) return bad_scene(name, "ground truth", "has no pixel", sizes_text(truth.sizes()));
  return absl::OkStatus();
}

/// Removes the last dimension of a (height, width, 1) ground truth, as in ENVI and some other files.
at::Tensor squeeze_last_dimension(const at::Tensor& truth) {
  return truth.dim() == 3 && truth.size(2) == 1 ? truth.squeeze(2) : truth;
}

absl::Status check_sizes(const std::string& name, const std::vector<int64_t>& cube, const at::Tensor& truth) {
  const int64_t h = truth.size(0), w = truth.size(1);
  if (cube[0] == h && cube[1] == w) return absl::OkStatus();
  std::string hint;
  if (cube[0] == w && cube[1] == h) hint = "the ground truth is transposed: swap rows and columns";
  if (cube[1] == h && cube[2] == w) hint = "the cube has its bands first: move them to the end";
  if (cube[2] == h && cube[1] == w) hint = "the cube is transposed: its bands are in the place of its rows";
  return bad_scene(name, "ground truth", "does not have the cube's height and width", sizes_text(truth.sizes()),
                   fmt::format("{} x {} of a cube of {}", cube[0], cube[1], sizes_text(cube)), hint);
}

constexpr int64_t kMostClasses = 4096;

absl::StatusOr<at::Tensor> checked_truth(const std::string& name, const at::Tensor& truth) {
  // float64 represents whole numbers up to 2^53; larger values are not labels.
  const at::Tensor values = truth.to(at::kDouble).contiguous();
  const at::Tensor bad = values.isfinite()
                             .logical_not()
                             .logical_or(values.trunc().ne(values))
                             .logical_or(values.lt(0))
                             .logical_or(values.gt(1e9));
  if (!bad.any().item<bool>()) return values.to(at::kLong);
  const auto at = first_nonzero(bad);
  const double value = value_at(values, at);
  return bad_scene(name, "ground truth", value < 0 ? "a label is negative" : "a label is not a whole number in range",
                   fmt::format("{} at row {}, column {}", value, at[0], at[1]), "whole numbers from 0 to 1000000000",
                   "positions count from 0");
}

std::string class_name(const KnownScene* known, int64_t value) {
  if (known) {
    for (const auto& [label, name] : known->classes) {
      if (label == value) return std::string(name);
    }
  }
  return fmt::format("class {}", value);
}

/// Checks the classes among `labels` different labels of a ground truth.
absl::Status check_classes(const std::string& name, const Scene& scene, int64_t labels) {
  const int64_t classes = scene.num_classes();
  const int64_t background = scene.background.value_or(0);
  if (background != 0 && classes == labels) {
    return bad_option("--background_class", "no pixel has this label", std::to_string(background),
                      fmt::format("none, 0 or a label of {}", name));
  }
  const std::string hint = scene.background ? "--background_class none learns every label" : "";
  if (classes == 0) {
    return bad_scene(name, "ground truth", "no pixel is labelled", fmt::format("{} everywhere", background),
                     "at least two classes");
  }
  if (classes == 1) {
    return bad_scene(name, "ground truth", "a single class: there is nothing to classify",
                     std::to_string(scene.label_values[0]),
                     scene.background ? fmt::format("at least two classes besides {}, which is unlabelled", background)
                                      : "at least two classes",
                     labels > 1 ? hint : "");
  }
  if (classes > kMostClasses) {
    return bad_scene(name, "ground truth", "too many classes", std::to_string(classes),
                     fmt::format("at most {}", kMostClasses), "is this a ground truth?");
  }
  return absl::OkStatus();
}

/// Replaces the names of the classes.
absl::Status set_class_names(Scene& scene, const std::vector<std::string>& names) {
  if (names.empty()) return absl::OkStatus();
  if (names.size() != scene.class_names.size()) {
    return bad_option(
        "--class_names", "not as many names as classes", std::to_string(names.size()),
        fmt::format("{} names, for the labels {}", scene.num_classes(), fmt::join(scene.label_values, ", ")));
  }
  scene.class_names = names;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Scene> make_scene(std::string name, const Cube& cube, const at::Tensor& ground_truth,
                                 const KnownScene* known, std::optional<int64_t> background) try {
  const at::Tensor truth = squeeze_last_dimension(ground_truth);
  Scene scene;
  scene.cube = cube;
  scene.cube.set_name(name);
  scene.background = background;
  TRAINKIT_RETURN_IF_ERROR(scene.cube.check_kind());
  TRAINKIT_RETURN_IF_ERROR(check_truth_kind(name, truth));
  TRAINKIT_RETURN_IF_ERROR(check_sizes(name, cube.sizes(), truth));
  TRAINKIT_ASSIGN_OR_RETURN(const at::Tensor labels, checked_truth(name, truth.cpu()));
  const auto [values, positions, counts] = at::_unique2(labels, true, true);
  const at::Tensor classes = at::zeros({values.numel()}, at::kLong);  // class of each value; 0 for the background
  for (int64_t i = 0; i < values.numel(); ++i) {
    const int64_t value = values.const_data_ptr<int64_t>()[i];
    if (value == background) continue;
    scene.label_values.push_back(value);
    classes[i] = scene.num_classes();
  }
  TRAINKIT_RETURN_IF_ERROR(check_classes(name, scene, values.numel()));
  scene.labels = classes.index_select(0, positions.flatten()).view(labels.sizes());
  for (const int64_t value : scene.label_values) scene.class_names.push_back(class_name(known, value));
  scene.name = std::move(name);
  return scene;
} catch (...) {
  return status_from_current_exception();
}

absl::StatusOr<Cube> load_cube(const std::string& path, const std::string& key) try {
  TRAINKIT_RETURN_IF_ERROR(check_file_kind("--cube", path));
  return Cube::open(path, key);
} catch (...) {
  return status_from_current_exception();
}

absl::StatusOr<Scene> load_scene(const SceneOptions& options) try {
  TRAINKIT_ASSIGN_OR_RETURN(const SceneFiles files, find_scene_files(options));
  const auto usual = files.known ? files.known->cube_keys : std::vector<std::string>{};
  TRAINKIT_ASSIGN_OR_RETURN(const Cube cube, Cube::open(files.cube, options.cube_key, usual));
  TRAINKIT_ASSIGN_OR_RETURN(const at::Tensor truth, read_ground_truth(files, options.gt_key, cube.sizes()));
  const std::string where = files.cube == files.gt ? files.cube : files.cube + " and " + files.gt;
  auto scene = make_scene(where, cube, truth, files.known, options.background);
  if (!scene.ok()) return scene.status();
  TRAINKIT_RETURN_IF_ERROR(set_class_names(*scene, options.class_names));
  const std::string file = split_path(files.cube).second;
  scene->name = files.known ? std::string(files.known->name) : file.substr(0, file.rfind('.'));
  // Training does not need wavelengths: a damaged list is ignored.
  scene->wavelengths = cube.wavelengths().value_or(std::vector<double>{});
  scene->cube_path = files.cube;
  scene->note = files.note;
  return scene;
} catch (...) {
  return status_from_current_exception();
}

}  // namespace trainkit::hsi
