#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <set>

#include "hsi_classification/maps.h"
#include "hsi_classification/results.h"
#include "test_util.h"
#include "trainkit/app/app.h"

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

TEST_CASE("A map shows each pixel of the scene in its class's colour, and a legend next to it", "[apps][hsi][maps]") {
  const Scene scene = scene_of(3);
  const at::Tensor picture = draw_map(scene.labels, scene);
  REQUIRE(picture.dim() == 3);
  REQUIRE(picture.size(0) >= 20);
  REQUIRE(picture.size(1) > 30);
  bool right = true;
  for (int64_t i = 0; i < 20; ++i) {
    for (int64_t j = 0; j < 30; ++j) {
      right = right && pixel(picture, i, j) == bytes_of(class_colour(scene.labels[i][j].item<int64_t>()));
    }
  }
  CHECK(right);
  std::set<std::string> legend;
  for (int64_t i = 0; i < picture.size(0); ++i) {
    for (int64_t j = 30; j < picture.size(1); ++j) legend.insert(pixel(picture, i, j));
  }
  for (int64_t k = 0; k <= 3; ++k) CHECK(legend.count(bytes_of(class_colour(k))) == 1);
}

TEST_CASE("A scene without unlabelled pixels has no entry for them in its legend", "[apps][hsi][maps]") {
  Scene scene = scene_of(2);
  const auto legend_has_black_square = [&] {
    const at::Tensor picture = draw_map(at::ones({20, 30}, at::kLong), scene);
    return picture.narrow(0, 6, 8).narrow(1, 36, 8).eq(0).all().item<bool>();
  };
  CHECK(legend_has_black_square());
  scene.background = std::nullopt;
  CHECK_FALSE(legend_has_black_square());
}

TEST_CASE("A map is enlarged to at least 600 columns without interpolation", "[apps][hsi][maps]") {
  const at::Tensor map = at::arange(6, at::kLong).view({2, 3});
  const at::Tensor large = enlarge(map);
  REQUIRE(large.sizes() == at::IntArrayRef({400, 600}));
  CHECK(large.slice(0, 0, 400, 200).slice(1, 0, 600, 200).equal(map));
  CHECK(large.slice(0, 199, 400, 200).slice(1, 199, 600, 200).equal(map));
  CHECK(enlarge(at::zeros({5, 601}, at::kLong)).size(1) == 601);
  CHECK(enlarge(at::zeros({5, 350}, at::kLong)).size(1) == 700);
}

TEST_CASE("The error map shows correct, wrong and unlabelled pixels in different colours", "[apps][hsi][maps]") {
  const at::Tensor truth = at::tensor({0, 1, 2, 2}, at::kLong).view({2, 2});
  const at::Tensor predicted = at::tensor({1, 1, 2, 1}, at::kLong).view({2, 2});
  const at::Tensor picture = draw_errors(predicted, truth);
  REQUIRE(picture.size(1) > 600);
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

TEST_CASE("Letters are drawn at their position and clipped at the border", "[apps][hsi][maps]") {
  const auto drawn = [](std::string_view text, int64_t row, int64_t column) {
    const at::Tensor picture = at::full({9, 12, 3}, 255, at::kByte);
    draw_text(picture, row, column, text, {});
    return picture.select(2, 0).eq(0);
  };
  const at::Tensor one = drawn("I", 1, 0);  // a vertical bar, a foot and a serif
  CHECK(one.narrow(0, 1, 7).select(1, 2).all().item<bool>());
  CHECK(one.sum().item<int64_t>() == 11);
  CHECK(drawn("\xc3\xa9", 1, 0).equal(drawn("?", 1, 0)));  // one letter of two bytes
  CHECK(drawn("II", 1, 0).narrow(1, 6, 6).equal(one.narrow(1, 0, 6)));
  CHECK(drawn("I", -20, 40).sum().item<int64_t>() == 0);
  CHECK(drawn("I", 1, 10).sum().item<int64_t>() > 0);
}

TEST_CASE("Repeats report their mean and the sample standard deviation", "[apps][hsi][results]") {
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

TEST_CASE("Scores are never shown without the leak", "[apps][hsi][results]") {
  const Metrics scores = {{"oa", 0.99612}, {"aa", 0.995}, {"kappa", 0.9951}, {"leak", 0.972}};
  CHECK(describe_scores(scores) == "oa 99.61%  aa 99.50%  kappa 0.9951  (leak 97.20%)");
  Metrics several = scores;
  for (const char* name : {"oa", "aa", "kappa", "leak"}) several[std::string(name) + "_std"] = 0.001;
  CHECK(describe_scores(several) ==
        "oa 99.61 +- 0.10%  aa 99.50 +- 0.10%  kappa 0.9951 +- 0.0010  (leak 97.20 +- 0.10%)");
}
