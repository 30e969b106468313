#pragma once
/// Classification maps as pictures.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "hsi_classification/scene.h"

namespace trainkit::hsi {

struct Colour {
  uint8_t red = 0, green = 0, blue = 0;
  bool operator==(const Colour&) const = default;
};

/// Returns the colour of class 1, 2, ...; 0 (unlabelled) is black. The first 20 colours are easy to distinguish;
/// further ones are generated and become more similar.
Colour class_colour(int64_t index);

/// Draws `map` (height, width) int64 with classes 0..C of `scene`, one pixel each from the top left corner, and a
/// legend with the class names on the right. Returns (rows, columns, 3) uint8.
at::Tensor draw_map(const at::Tensor& map, const Scene& scene);

/// Draws `text` in letters of 5 x 7 pixels, 6 apart, with the upper left corner at (row, column). Draws non-ASCII
/// characters as '?' and clips at the edges of the picture.
void draw_text(const at::Tensor& picture, int64_t row, int64_t column, std::string_view text, Colour colour);

}  // namespace trainkit::hsi
