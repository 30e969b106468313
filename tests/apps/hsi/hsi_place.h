#pragma once
/// A small scene, and the flags of a small run of trainkit-hsi with it.

#include <ATen/Functions.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "apps/program.h"
#include "apps/runs.h"
#include "hsi_classification/preprocess.h"
#include "hsi_classification/scene.h"
#include "test_util.h"

namespace trainkit::test {

using namespace trainkit::hsi;

/// All values of a cube, (height, width, bands) float32.
inline at::Tensor values_of(const Cube& cube) { return cube.rows(0, cube.height()).value(); }

/// A cube with mirrored borders.
inline at::Tensor padded(const at::Tensor& cube, int64_t radius) {
  const at::Tensor image =
      at::zeros({cube.size(0) + 2 * radius, cube.size(1) + 2 * radius, cube.size(2)}, cube.options());
  image.narrow(0, radius, cube.size(0)).narrow(1, radius, cube.size(1)).copy_(cube);
  mirror_borders(image, radius);
  return image;
}

/// A run folder with a scene of 30 x 32 pixels, 16 bands and 3 classes.
struct HsiPlace {
  HsiPlace() {
    const DemoSceneOptions scene{.height = 30, .width = 32, .bands = 16, .classes = 3, .seed = 4};
    const absl::Status written = write_demo_scene(dir.path().string(), scene);
    if (!written.ok()) throw std::runtime_error(error_line(written));
  }
  /// Flags of a run that takes a few milliseconds per step. Flags in `more` replace those here.
  std::vector<std::string> flags(const std::string& run, std::vector<std::string> more = {}) const {
    const std::vector<std::pair<std::string, std::string>> mine = {
        {"--cube", dir / "demo.mat"}, {"--gt", dir / "demo_gt.mat"},
        {"--output_dir", dir / run},  {"--model", "cnn2d"},
        {"--patch_size", "5"},        {"--batch_size", "8"},
        {"--train_ratio", "0.3"},     {"--device", "cpu"},
        {"--log_every", "5"},         {"--epochs", "2"}};
    std::vector<std::string> all = std::move(more);
    const auto split = std::find(all.begin(), all.end(), "--split");
    const bool has_split_file = split != all.end() && std::next(split)->ends_with(".json");
    for (const auto& [flag, value] : mine) {
      if (has_split_file && flag == "--train_ratio") continue;
      if (std::find(all.begin(), all.end(), flag) == all.end()) all.insert(all.end(), {flag, value});
    }
    return all;
  }
  TempDir dir;
};

}  // namespace trainkit::test
