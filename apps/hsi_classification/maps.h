#pragma once
/// Classification maps as pictures.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hsi_classification/scene.h"

namespace trainkit::hsi {

struct Colour {
  uint8_t red = 0, green = 0, blue = 0;
  bool operator==(const Colour&) const = default;
};

/// Returns the colour of class 1, 2, ...; 0 (unlabelled) is black. The first 20 colours are easy to distinguish;
/// further ones are generated and become more similar.
Colour class_colour(int64_t index);

/// Enlarges a map (height, width) to at least 600 columns: each pixel becomes a square.
at::Tensor enlarge(const at::Tensor& map);

/// One value of a map: its colour, and its name in the legend. An empty name is not listed.
struct LegendEntry {
  std::string name;
  Colour colour;
};

/// Draws `map` (height, width) int64 with values 0..n-1 of n entries, one pixel each from the top left corner, and a
/// legend on the right, if an entry has a name. Returns (rows, columns, 3) uint8.
at::Tensor draw_map(const at::Tensor& map, const std::vector<LegendEntry>& legend);
/// The same for classes 0..C of `scene`. Without unlabelled pixels the legend does not list them.
at::Tensor draw_map(const at::Tensor& map, const Scene& scene);

/// Draws the difference of two maps of classes (height, width) int64: correct pixels grey, wrong pixels red, pixels
/// without a true class black. Returns (rows, columns, 3) uint8, enlarged.
at::Tensor draw_errors(const at::Tensor& predicted, const at::Tensor& truth);

/// The pictures of draw_map(enlarge(map), scene) and draw_errors without a legend, for a page that has its own.
at::Tensor draw_plain_map(const at::Tensor& map, const Scene& scene);
at::Tensor draw_plain_errors(const at::Tensor& predicted, const at::Tensor& truth);

/// Draws `text` in letters of 5 x 7 pixels, 6 apart, with the upper left corner at (row, column). Draws non-ASCII
/// characters as '?' and clips at the edges of the picture.
void draw_text(const at::Tensor& picture, int64_t row, int64_t column, std::string_view text, Colour colour);

}  // namespace trainkit::hsi
