#include "hsi_classification/maps.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace trainkit::hsi {
namespace {

/// Least width of an enlarged map in picture pixels, without its legend.
constexpr int64_t kLeastWidth = 600;
constexpr int64_t kLetterWidth = 6, kLineHeight = 11, kMargin = 6, kSwatch = 8;

/// Glyphs of 5 x 7 pixels from the space to '~': five columns each, from the left, with the top pixel in the lowest
/// bit.
constexpr std::array<std::array<uint8_t, 5>, 95> kLetters = {{
    {0x00, 0x00, 0x00, 0x00, 0x00}, {0x00, 0x00, 0x5f, 0x00, 0x00}, {0x00, 0x07, 0x00, 0x07, 0x00},  //  !"
    {0x14, 0x7f, 0x14, 0x7f, 0x14}, {0x24, 0x2a, 0x7f, 0x2a, 0x12}, {0x23, 0x13, 0x08, 0x64, 0x62},  // #$%
    {0x36, 0x49, 0x55, 0x22, 0x50}, {0x00, 0x05, 0x03, 0x00, 0x00}, {0x00, 0x1c, 0x22, 0x41, 0x00},  // &'(
    {0x00, 0x41, 0x22, 0x1c, 0x00}, {0x14, 0x08, 0x3e, 0x08, 0x14}, {0x08, 0x08, 0x3e, 0x08, 0x08},  // )*+
    {0x00, 0x50, 0x30, 0x00, 0x00}, {0x08, 0x08, 0x08, 0x08, 0x08}, {0x00, 0x60, 0x60, 0x00, 0x00},  // ,-.
    {0x20, 0x10, 0x08, 0x04, 0x02}, {0x3e, 0x51, 0x49, 0x45, 0x3e}, {0x00, 0x42, 0x7f, 0x40, 0x00},  // /01
    {0x42, 0x61, 0x51, 0x49, 0x46}, {0x21, 0x41, 0x45, 0x4b, 0x31}, {0x18, 0x14, 0x12, 0x7f, 0x10},  // 234
    {0x27, 0x45, 0x45, 0x45, 0x39}, {0x3c, 0x4a, 0x49, 0x49, 0x30}, {0x01, 0x71, 0x09, 0x05, 0x03},  // 567
    {0x36, 0x49, 0x49, 0x49, 0x36}, {0x06, 0x49, 0x49, 0x29, 0x1e}, {0x00, 0x36, 0x36, 0x00, 0x00},  // 89:
    {0x00, 0x56, 0x36, 0x00, 0x00}, {0x08, 0x14, 0x22, 0x41, 0x00}, {0x14, 0x14, 0x14, 0x14, 0x14},  // ;<=
    {0x00, 0x41, 0x22, 0x14, 0x08}, {0x02, 0x01, 0x51, 0x09, 0x06}, {0x32, 0x49, 0x79, 0x41, 0x3e},  // >?@
    {0x7e, 0x11, 0x11, 0x11, 0x7e}, {0x7f, 0x49, 0x49, 0x49, 0x36}, {0x3e, 0x41, 0x41, 0x41, 0x22},  // ABC
    {0x7f, 0x41, 0x41, 0x22, 0x1c}, {0x7f, 0x49, 0x49, 0x49, 0x41}, {0x7f, 0x09, 0x09, 0x09, 0x01},  // DEF
    {0x3e, 0x41, 0x49, 0x49, 0x7a}, {0x7f, 0x08, 0x08, 0x08, 0x7f}, {0x00, 0x41, 0x7f, 0x41, 0x00},  // GHI
    {0x20, 0x40, 0x41, 0x3f, 0x01}, {0x7f, 0x08, 0x14, 0x22, 0x41}, {0x7f, 0x40, 0x40, 0x40, 0x40},  // JKL
    {0x7f, 0x02, 0x0c, 0x02, 0x7f}, {0x7f, 0x04, 0x08, 0x10, 0x7f}, {0x3e, 0x41, 0x41, 0x41, 0x3e},  // MNO
    {0x7f, 0x09, 0x09, 0x09, 0x06}, {0x3e, 0x41, 0x51, 0x21, 0x5e}, {0x7f, 0x09, 0x19, 0x29, 0x46},  // PQR
    {0x46, 0x49, 0x49, 0x49, 0x31}, {0x01, 0x01, 0x7f, 0x01, 0x01}, {0x3f, 0x40, 0x40, 0x40, 0x3f},  // STU
    {0x1f, 0x20, 0x40, 0x20, 0x1f}, {0x3f, 0x40, 0x38, 0x40, 0x3f}, {0x63, 0x14, 0x08, 0x14, 0x63},  // VWX
    {0x07, 0x08, 0x70, 0x08, 0x07}, {0x61, 0x51, 0x49, 0x45, 0x43}, {0x00, 0x7f, 0x41, 0x41, 0x00},  // YZ[
    {0x02, 0x04, 0x08, 0x10, 0x20}, {0x00, 0x41, 0x41, 0x7f, 0x00}, {0x04, 0x02, 0x01, 0x02, 0x04},  // \]^
    {0x40, 0x40, 0x40, 0x40, 0x40}, {0x00, 0x01, 0x02, 0x04, 0x00}, {0x20, 0x54, 0x54, 0x54, 0x78},  // _`a
    {0x7f, 0x48, 0x44, 0x44, 0x38}, {0x38, 0x44, 0x44, 0x44, 0x20}, {0x38, 0x44, 0x44, 0x48, 0x7f},  // bcd
    {0x38, 0x54, 0x54, 0x54, 0x18}, {0x08, 0x7e, 0x09, 0x01, 0x02}, {0x0c, 0x52, 0x52, 0x52, 0x3e},  // efg
    {0x7f, 0x08, 0x04, 0x04, 0x78}, {0x00, 0x44, 0x7d, 0x40, 0x00}, {0x20, 0x40, 0x44, 0x3d, 0x00},  // hij
    {0x7f, 0x10, 0x28, 0x44, 0x00}, {0x00, 0x41, 0x7f, 0x40, 0x00}, {0x7c, 0x04, 0x18, 0x04, 0x78},  // klm
    {0x7c, 0x08, 0x04, 0x04, 0x78}, {0x38, 0x44, 0x44, 0x44, 0x38}, {0x7c, 0x14, 0x14, 0x14, 0x08},  // nop
    {0x08, 0x14, 0x14, 0x18, 0x7c}, {0x7c, 0x08, 0x04, 0x04, 0x08}, {0x48, 0x54, 0x54, 0x54, 0x20},  // qrs
    {0x04, 0x3f, 0x44, 0x40, 0x20}, {0x3c, 0x40, 0x40, 0x20, 0x7c}, {0x1c, 0x20, 0x40, 0x20, 0x1c},  // tuv
    {0x3c, 0x40, 0x30, 0x40, 0x3c}, {0x44, 0x28, 0x10, 0x28, 0x44}, {0x0c, 0x50, 0x50, 0x50, 0x3c},  // wxy
    {0x44, 0x64, 0x54, 0x4c, 0x44}, {0x00, 0x08, 0x36, 0x41, 0x00}, {0x00, 0x00, 0x7f, 0x00, 0x00},  // z{|
    {0x00, 0x41, 0x36, 0x08, 0x00}, {0x10, 0x08, 0x08, 0x10, 0x08},                                  // }~
}};

/// Source: Sasha Trubetskoy, "List of 20 simple, distinct colors".
constexpr std::array<Colour, 20> kColours = {{{230, 25, 75},  {60, 180, 75},   {255, 225, 25}, {0, 130, 200},
                                              {245, 130, 48}, {145, 30, 180},  {70, 240, 240}, {240, 50, 230},
                                              {210, 245, 60}, {250, 190, 212}, {0, 128, 128},  {220, 190, 255},
                                              {170, 110, 40}, {255, 250, 200}, {128, 0, 0},    {170, 255, 195},
                                              {128, 128, 0},  {255, 215, 180}, {0, 0, 128},    {128, 128, 128}}};

/// Writes one pixel if it lies inside the picture.
void set_pixel(const at::Tensor& picture, int64_t row, int64_t column, Colour colour) {
  if (row < 0 || column < 0 || row >= picture.size(0) || column >= picture.size(1)) return;
  uint8_t* const at = picture.mutable_data_ptr<uint8_t>() + (row * picture.size(1) + column) * 3;
  at[0] = colour.red;
  at[1] = colour.green;
  at[2] = colour.blue;
}

void fill(const at::Tensor& picture, int64_t row, int64_t column, int64_t side, Colour colour) {
  for (int64_t i = 0; i < side; ++i) {
    for (int64_t j = 0; j < side; ++j) set_pixel(picture, row + i, column + j, colour);
  }
}

}  // namespace

Colour class_colour(int64_t index) {
  TORCH_CHECK_INDEX(index >= 0, "expected a class >= 0, got ", index);
  if (index == 0) return {};
  if (index <= static_cast<int64_t>(kColours.size())) return kColours[static_cast<size_t>(index - 1)];
  // Steps of the golden angle on the colour wheel, at three brightnesses.
  const double hue = std::fmod(static_cast<double>(index) * 0.6180339887, 1.0) * 6;
  const double value = 1 - 0.2 * static_cast<double>(index % 3);
  const auto channel = [&](double offset) {
    const double k = std::fmod(offset + hue, 6.0);
    const double shade = value - value * 0.7 * std::clamp(std::min(k, 4 - k), 0.0, 1.0);
    return static_cast<uint8_t>(std::lround(255 * shade));
  };
  return {channel(5), channel(3), channel(1)};
}

void draw_text(const at::Tensor& picture, int64_t row, int64_t column, std::string_view text, Colour colour) {
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if ((code & 0xc0) == 0x80) continue;  // continuation byte of a UTF-8 character
    const auto& letter = kLetters[code >= 32 && code < 127 ? code - 32 : '?' - 32];
    for (int64_t j = 0; j < 5; ++j) {
      for (int64_t i = 0; i < 7; ++i) {
        if (letter[static_cast<size_t>(j)] >> i & 1) set_pixel(picture, row + i, column + j, colour);
      }
    }
    column += kLetterWidth;
  }
}

at::Tensor enlarge(const at::Tensor& map) {
  const int64_t times = (kLeastWidth + map.size(1) - 1) / map.size(1);
  return map.repeat_interleave(times, 0).repeat_interleave(times, 1);
}

at::Tensor draw_map(const at::Tensor& map, const std::vector<LegendEntry>& legend) {
  TORCH_CHECK_VALUE(map.dim() == 2 && map.scalar_type() == at::kLong && map.is_cpu(),
                    "map: expected (height, width) int64 on the CPU");
  const int64_t height = map.size(0), width = map.size(1);
  size_t longest = 0;
  int64_t lines = 0;
  for (const LegendEntry& entry : legend) {
    longest = std::max(longest, entry.name.size());
    lines += !entry.name.empty();
  }
  const int64_t margin = lines > 0 ? 2 * kMargin + kSwatch + 4 + static_cast<int64_t>(longest) * kLetterWidth : 0;
  const int64_t rows = lines > 0 ? std::max(height, 2 * kMargin + lines * kLineHeight) : height;
  at::Tensor picture = at::full({rows, width + margin, 3}, 255, at::kByte);
  const at::Tensor values = map.contiguous();
  const auto value = values.accessor<int64_t, 2>();
  for (int64_t i = 0; i < height; ++i) {
    for (int64_t j = 0; j < width; ++j) set_pixel(picture, i, j, legend.at(static_cast<size_t>(value[i][j])).colour);
  }
  int64_t row = kMargin;
  for (const LegendEntry& entry : legend) {
    if (entry.name.empty()) continue;
    fill(picture, row, width + kMargin, kSwatch, entry.colour);
    draw_text(picture, row, width + kMargin + kSwatch + 4, entry.name, {});
    row += kLineHeight;
  }
  return picture;
}

namespace {

/// A map with 0: no true class, 1: correct, 2: wrong; and its legend.
std::pair<at::Tensor, std::vector<LegendEntry>> errors_of(const at::Tensor& predicted, const at::Tensor& truth) {
  const at::Tensor map = truth.ne(0).to(at::kLong) + truth.ne(0).logical_and(predicted.ne(truth)).to(at::kLong);
  const bool has_unlabelled = truth.eq(0).any().item<bool>();
  return {map, {{has_unlabelled ? "unlabelled" : "", {}}, {"correct", {200, 200, 200}}, {"wrong", {230, 25, 75}}}};
}

std::vector<LegendEntry> legend_of(const Scene& scene) {
  std::vector<LegendEntry> legend = {{scene.background ? "unlabelled" : "", class_colour(0)}};
  for (const std::string& name : scene.class_names) {
    legend.push_back({name, class_colour(static_cast<int64_t>(legend.size()))});
  }
  return legend;
}

at::Tensor without_legend(const at::Tensor& map, std::vector<LegendEntry> legend) {
  for (LegendEntry& entry : legend) entry.name.clear();
  return draw_map(enlarge(map), legend);
}

}  // namespace

at::Tensor draw_map(const at::Tensor& map, const Scene& scene) { return draw_map(map, legend_of(scene)); }

at::Tensor draw_plain_map(const at::Tensor& map, const Scene& scene) { return without_legend(map, legend_of(scene)); }

at::Tensor draw_errors(const at::Tensor& predicted, const at::Tensor& truth) {
  const auto [map, legend] = errors_of(predicted, truth);
  return draw_map(enlarge(map), legend);
}

at::Tensor draw_plain_errors(const at::Tensor& predicted, const at::Tensor& truth) {
  const auto [map, legend] = errors_of(predicted, truth);
  return without_legend(map, legend);
}

}  // namespace trainkit::hsi
