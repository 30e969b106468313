#pragma once
/// Pictures of classes.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "hsi_classification/scene.h"

namespace trainkit::hsi {

struct Colour {
  uint8_t red = 0, green = 0, blue = 0;
  bool operator==(const Colour&) const = default;
};

/// The colour of class 1, 2, ...; 0 (unlabelled) is black. The first 20 are apart for the eye; further ones are too, as
/// far as there are that many colours.
Colour class_colour(int64_t index);

/// A picture of `map` (height, width) int64, classes 0..C of `scene`: a pixel for each, from the top left corner, and
/// to the right of it a legend with the names of the classes. (rows, columns, 3) uint8.
at::Tensor draw_map(const at::Tensor& map, const Scene& scene);

/// Draws `text` in letters of 5 x 7 pixels, 6 apart, with the upper left corner at (row, column); what is not ASCII is
/// drawn as '?', what lies outside the picture is cut off.
void draw_text(const at::Tensor& picture, int64_t row, int64_t column, std::string_view text, Colour colour);

}  // namespace trainkit::hsi
