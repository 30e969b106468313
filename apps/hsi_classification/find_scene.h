#pragma once
/// Finds the files and variables of a scene.

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include <string>

#include "hsi_classification/scene.h"
#include "trainkit/arrays/array_source.h"

namespace trainkit::hsi {

/// Files of a scene, and its entry in known_scenes().
struct SceneFiles {
  std::string cube;
  std::string gt;
  const KnownScene* known = nullptr;
  /// Other files of the folder that could be scenes, see left_out_note; empty if there are none.
  std::string note = {};
};

/// Returns the files named in `options`, or those of a known scene in its data_dir.
absl::StatusOr<SceneFiles> find_scene_files(const SceneOptions& options);

/// Reads the ground truth, two dimensions. Among several candidate variables, prefers the one with the cube's height
/// and width.
absl::StatusOr<at::Tensor> read_ground_truth(const SceneFiles& files, const std::string& key,
                                             at::IntArrayRef cube_sizes);

/// Returns an error (cli.value, exit code 2) unless `path` has an extension that the readers know.
absl::Status check_file_kind(const std::string& flag, const std::string& path);

/// Finds a known scene by its name or that of its file, ignoring case and punctuation; nullptr if there is none.
const KnownScene* find_known_scene(std::string_view name);

}  // namespace trainkit::hsi
