#pragma once
/// Classification maps as pictures and in a MATLAB file.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>

#include <cstdint>
#include <string>
#include <vector>

#include "hsi_classification/scene.h"
#include "hsi_classification/split.h"
#include "trainkit/report/result_page.h"

namespace trainkit::hsi {

struct Colour {
  uint8_t red = 0, green = 0, blue = 0;
  bool operator==(const Colour&) const = default;
};

/// Returns the colour of class 1, 2, ...; 0 (unlabelled) is black. The first 20 colours are easy to distinguish;
/// further ones are generated and become more similar.
Colour class_colour(int64_t index);

/// One value of a map.
struct LegendEntry {
  std::string name;
  Colour colour;
};

/// Returns the values 0 (unlabelled) and 1..C of maps of these classes.
std::vector<LegendEntry> legend_of(const std::vector<std::string>& class_names);

/// Returns the side of the square that a pixel of a map becomes, so that the picture has at least 600 columns.
int64_t map_scale(int64_t width);

/// Draws `map` (height, width) int64 with values 0..n-1 of n entries: each pixel is a square of map_scale(width).
/// Returns (rows, columns, 3) uint8.
at::Tensor draw_map(const at::Tensor& map, const std::vector<LegendEntry>& legend);

/// Draws the difference of two maps of classes (height, width) int64 as draw_map does: correct pixels grey, wrong ones
/// red, those without a true class black.
at::Tensor draw_errors(const at::Tensor& predicted, const at::Tensor& truth);

/// Draws names and colours as SVG.
std::string draw_legend(const std::vector<LegendEntry>& legend);

/// Writes classification.png, ground_truth.png, errors.png, legend.svg and maps.mat ("classification" and
/// "ground_truth" with the labels of the scene's file, "split" with 1 training, 2 validation, 3 test) to `folder`.
/// @param map (height, width) int64, the predicted class 1..C of each pixel. Errors: exit code 6.
absl::Status write_maps(const std::string& folder, const at::Tensor& map, const Scene& scene, const Split& split);
/// Adds these pictures to the page of a result.
void add_maps(ResultPage& page, const Scene& scene);

}  // namespace trainkit::hsi
