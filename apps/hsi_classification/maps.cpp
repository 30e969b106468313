#include "hsi_classification/maps.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <absl/strings/str_replace.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "trainkit/arrays/array_file.h"
#include "trainkit/arrays/mat.h"
#include "trainkit/core/error.h"
#include "trainkit/core/format.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"

namespace trainkit::hsi {
namespace {

/// Source: Sasha Trubetskoy, "List of 20 simple, distinct colors".
constexpr std::array<Colour, 20> kColours = {{{230, 25, 75},  {60, 180, 75},   {255, 225, 25}, {0, 130, 200},
                                              {245, 130, 48}, {145, 30, 180},  {70, 240, 240}, {240, 50, 230},
                                              {210, 245, 60}, {250, 190, 212}, {0, 128, 128},  {220, 190, 255},
                                              {170, 110, 40}, {255, 250, 200}, {128, 0, 0},    {170, 255, 195},
                                              {128, 128, 0},  {255, 215, 180}, {0, 0, 128},    {128, 128, 128}}};

std::string hex(Colour colour) { return fmt::format("#{:02x}{:02x}{:02x}", colour.red, colour.green, colour.blue); }

/// Converts `map` (height, width) of classes 0..C to the label values of the scene's file.
at::Tensor file_values(const at::Tensor& map, const Scene& scene) {
  std::vector<int64_t> values = {scene.background.value_or(-1)};
  values.insert(values.end(), scene.label_values.begin(), scene.label_values.end());
  return at::tensor(values, at::kLong).index_select(0, map.flatten()).view(map.sizes());
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

int64_t map_scale(int64_t width) {
  constexpr int64_t kLeastWidth = 600;
  return (kLeastWidth + width - 1) / width;
}

at::Tensor draw_map(const at::Tensor& map, const std::vector<LegendEntry>& legend) {
  TORCH_CHECK_VALUE(map.dim() == 2 && map.scalar_type() == at::kLong && map.is_cpu(),
                    "map: expected (height, width) int64 on the CPU");
  std::vector<uint8_t> colours;
  for (const LegendEntry& entry : legend) {
    colours.insert(colours.end(), {entry.colour.red, entry.colour.green, entry.colour.blue});
  }
  const at::Tensor palette = at::tensor(colours, at::kByte).view({-1, 3});
  const at::Tensor picture = palette.index_select(0, map.flatten()).view({map.size(0), map.size(1), 3});
  const int64_t times = map_scale(map.size(1));
  return picture.repeat_interleave(times, 0).repeat_interleave(times, 1);
}

std::vector<LegendEntry> legend_of(const std::vector<std::string>& class_names) {
  std::vector<LegendEntry> legend = {{"unlabelled", class_colour(0)}};
  for (const std::string& name : class_names) {
    legend.push_back({name, class_colour(static_cast<int64_t>(legend.size()))});
  }
  return legend;
}

at::Tensor draw_errors(const at::Tensor& predicted, const at::Tensor& truth) {
  const at::Tensor map = truth.ne(0).to(at::kLong) + truth.ne(0).logical_and(predicted.ne(truth)).to(at::kLong);
  return draw_map(map, {{"unlabelled", {}}, {"correct", {200, 200, 200}}, {"wrong", {230, 25, 75}}});
}

std::string draw_legend(const std::vector<LegendEntry>& legend) {
  constexpr int kLine = 22, kLetter = 8;
  size_t longest = 0;
  std::string lines;
  for (size_t i = 0; i < legend.size(); ++i) {
    const std::string name = escape_text(legend[i].name, 120),
                      text = absl::StrReplaceAll(name, {{"&", "&amp;"}, {"<", "&lt;"}});
    longest = std::max(longest, name.size());
    const int top = 8 + kLine * static_cast<int>(i);
    lines +=
        fmt::format("<rect x=\"8\" y=\"{}\" width=\"14\" height=\"14\" fill=\"{}\"/>\n", top, hex(legend[i].colour));
    lines += fmt::format("<text x=\"30\" y=\"{}\">{}</text>\n", top + 12, text);
  }
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" font-family=\"sans-serif\" "
      "font-size=\"14\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{}</svg>\n",
      40 + kLetter * longest, 8 + kLine * legend.size(), lines);
}

absl::Status write_maps(const std::string& folder, const at::Tensor& map, const Scene& scene, const Split& split) {
  const std::vector<LegendEntry> legend = legend_of(scene.class_names);
  TRAINKIT_RETURN_IF_ERROR(write_png(folder + "/classification.png", draw_map(map, legend)));
  TRAINKIT_RETURN_IF_ERROR(write_png(folder + "/ground_truth.png", draw_map(scene.labels, legend)));
  TRAINKIT_RETURN_IF_ERROR(write_png(folder + "/errors.png", draw_errors(map, scene.labels)));
  TRAINKIT_RETURN_IF_ERROR(write_file_atomically(Fs::posix(), folder + "/legend.svg", draw_legend(legend)));
  at::Tensor parts = at::zeros({scene.height() * scene.width()}, at::kByte);
  parts.index_fill_(0, split.train, 1).index_fill_(0, split.validation, 2).index_fill_(0, split.test, 3);
  const std::vector<std::pair<std::string, at::Tensor>> variables = {
      {"classification", file_values(map, scene)},
      {"ground_truth", file_values(scene.labels, scene)},
      {"split", parts.view({scene.height(), scene.width()})}};
  return write_mat(folder + "/maps.mat", variables);
}

void add_maps(ResultPage& page, const Scene& scene) {
  page.add_picture("classification.png", "Classification", "Map of the predicted class of each pixel");
  page.add_picture("ground_truth.png", "Ground truth", "Map of the true class of each labelled pixel");
  page.add_picture("errors.png", "Errors: wrong in red, correct in grey",
                   "Map of the pixels that were classified wrongly, in red");
  std::vector<std::pair<std::string, std::string>> legend;
  for (const LegendEntry& entry : legend_of(scene.class_names)) legend.emplace_back(entry.name, hex(entry.colour));
  if (!scene.background) legend.erase(legend.begin());
  page.add_legend(legend);
}

}  // namespace trainkit::hsi
