#pragma once
/// Which files and variables a scene is read from.

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include <string>

#include "hsi_classification/scene.h"

namespace trainkit::hsi {

/// The files of a scene, and what is known of it.
struct SceneFiles {
  std::string cube;
  std::string gt;
  const KnownScene* known = nullptr;
};

/// The files that `options` name, or those of a known scene in its data_dir.
absl::StatusOr<SceneFiles> find_scene_files(const SceneOptions& options);

/// The cube of a file as it is there, three dimensions of numbers.
absl::StatusOr<at::Tensor> read_cube(const SceneFiles& files, const std::string& key);

/// The ground truth that goes with a cube of these sizes, two dimensions. Of several variables that could be it, the
/// one of the cube's sizes is.
absl::StatusOr<at::Tensor> read_ground_truth(const SceneFiles& files, const std::string& key,
                                             at::IntArrayRef cube_sizes);

/// The known scene of that name, whatever its case and punctuation; nullptr if there is none.
const KnownScene* find_known_scene(std::string_view name);

/// True if no value of `tensor` has a fraction, is infinite or NaN.
bool has_whole_numbers(const at::Tensor& tensor);

}  // namespace trainkit::hsi
