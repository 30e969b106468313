#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <set>

#include "app/program/repeats.h"
#include "hsi_classification/maps.h"
#include "test_util.h"

using namespace trainkit;
using namespace trainkit::hsi;
using namespace trainkit::test;

namespace {

Scene scene_of(int64_t classes) {
  Scene scene;
  scene.cube = at::zeros({20, 30, 2});
  scene.labels = at::arange(600, at::kLong).remainder(classes + 1).view({20, 30});
  for (int64_t k = 1; k <= classes; ++k) {
    scene.label_values.push_back(10 * k);
    scene.class_names.push_back("class " + std::to_string(10 * k));
  }
  return scene;
}

std::string pixel(const at::Tensor& picture, int64_t row, int64_t column) {
  std::string bytes;
  for (int64_t c = 0; c < 3; ++c) bytes += static_cast<char>(picture[row][column][c].item<uint8_t>());
  return bytes;
}

std::string bytes_of(Colour colour) {
  return {static_cast<char>(colour.red), static_cast<char>(colour.green), static_cast<char>(colour.blue)};
}

}  // namespace

TEST_CASE("A map shows each pixel of the scene as a square of its class's colour", "[apps][hsi][maps]") {
  const Scene scene = scene_of(3);
  const at::Tensor picture = draw_map(scene.labels, legend_of(scene.class_names));
  REQUIRE(picture.sizes() == at::IntArrayRef({400, 600, 3}));
  bool right = true;
  for (int64_t i = 0; i < 400; ++i) {
    for (int64_t j = 0; j < 600; ++j) {
      right = right && pixel(picture, i, j) == bytes_of(class_colour(scene.labels[i / 20][j / 20].item<int64_t>()));
    }
  }
  CHECK(right);
}

TEST_CASE("A map is enlarged to at least 600 columns", "[apps][hsi][maps]") {
  const auto columns = [](int64_t width) { return draw_map(at::zeros({5, width}, at::kLong), legend_of({})).size(1); };
  CHECK(columns(3) == 600);
  CHECK(columns(350) == 700);
  CHECK(columns(601) == 601);
}

TEST_CASE("A legend has names and colours as SVG", "[apps][hsi][maps]") {
  const std::string svg = draw_legend(legend_of({"corn", "<a & b>"}));
  for (const char* text : {"unlabelled</text>", "corn</text>", "&lt;a &amp; b></text>", "#000000", "#e6194b"}) {
    INFO(svg);
    CHECK(svg.find(text) != std::string::npos);
  }
}

TEST_CASE("The error map shows correct, wrong and unlabelled pixels in different colours", "[apps][hsi][maps]") {
  const at::Tensor truth = at::tensor({0, 1, 2, 2}, at::kLong).view({2, 2});
  const at::Tensor predicted = at::tensor({1, 1, 2, 1}, at::kLong).view({2, 2});
  const at::Tensor picture = draw_errors(predicted, truth);
  REQUIRE(picture.size(1) == 600);
  CHECK(pixel(picture, 0, 0) == bytes_of({}));
  CHECK(pixel(picture, 0, 599) == pixel(picture, 599, 0));
  CHECK(pixel(picture, 0, 599) != pixel(picture, 599, 599));
  CHECK(pixel(picture, 599, 599) == bytes_of({230, 25, 75}));
}

TEST_CASE("Classes have different colours, also beyond the palette", "[apps][hsi][maps]") {
  std::set<std::string> seen;
  for (int64_t k = 0; k <= 40; ++k) seen.insert(bytes_of(class_colour(k)));
  CHECK(seen.size() == 41);
  CHECK_THROWS_AS(class_colour(-1), c10::IndexError);
}

TEST_CASE("Repeats report their mean and the sample standard deviation", "[apps][hsi][results]") {
  using trainkit::detail::mean_and_deviation;
  const Metrics all =
      mean_and_deviation({{{"oa", 0.9}, {"aa", 0.5}}, {{"oa", 1.0}, {"aa", 0.5}}, {{"oa", 0.8}, {"aa", 0.5}}});
  CHECK(all.at("oa") == Approx(0.9));
  CHECK(all.at("oa_std") == Approx(0.1));
  CHECK(all.at("aa_std") == Approx(0).margin(1e-15));
  CHECK(mean_and_deviation({{{"oa", 0.9}}}).at("oa_std") == 0);
  // The recall of a class is known only where the test part has the class.
  const Metrics some = mean_and_deviation({{{"oa", 0.9}}, {{"oa", 0.7}, {"recall.Oats", 0.5}}});
  CHECK(some.at("recall.Oats") == 0.5);
  CHECK(some.at("oa") == Approx(0.8));
}
