#include <png.h>

#include <filesystem>

#include "io/mat_bytes.h"
#include "test_util.h"
#include "trainkit/io/array_file.h"

using namespace trainkit;

namespace {

at::Tensor read_png(const std::string& path) {
  png_image png = {};
  png.version = PNG_IMAGE_VERSION;
  REQUIRE(png_image_begin_read_from_file(&png, path.c_str()));
  png.format = PNG_FORMAT_RGB;
  at::Tensor image = torch::empty({png.height, png.width, 3}, torch::kByte);
  REQUIRE(png_image_finish_read(&png, nullptr, image.data_ptr(), 0, nullptr));
  return image;
}

}  // namespace

TEST_CASE("A PNG file contains the given pixels", "[io][png]") {
  const test::TempDir folder;
  for (const auto& [height, width] : {std::pair(1, 1), std::pair(7, 300), std::pair(200, 3)}) {
    const at::Tensor image = torch::randint(0, 256, {height, width, 3}, torch::kByte);
    REQUIRE(write_png(folder / "f.png", image).ok());
    CHECK(at::equal(read_png(folder / "f.png"), image));
    REQUIRE(write_png(folder / "g.png", image.permute({1, 0, 2}).contiguous().permute({1, 0, 2})).ok());
    CHECK(test::read_bytes(folder / "f.png") == test::read_bytes(folder / "g.png"));
  }
}

TEST_CASE("Tensors that are not images are refused", "[io][png]") {
  const test::TempDir folder;
  CHECK_THROWS_AS(write_png(folder / "f.png", torch::zeros({3, 4, 3})), c10::ValueError);
  CHECK_THROWS_AS(write_png(folder / "f.png", torch::zeros({3, 4}, torch::kByte)), c10::ValueError);
  CHECK_THROWS_AS(write_png(folder / "f.png", torch::zeros({0, 4, 3}, torch::kByte)), c10::ValueError);
  CHECK(exit_code(write_png(folder / "no/f.png", torch::zeros({3, 4, 3}, torch::kByte))) == ExitCode::kStorage);
  CHECK(std::filesystem::is_empty(folder.path()));
}
