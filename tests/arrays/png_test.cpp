#include <png.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>

#include "arrays/mat_bytes.h"
#include "test_util.h"
#include "trainkit/arrays/array_file.h"

using namespace trainkit;

namespace {

/// Reads with libpng itself.
at::Tensor reference_png(const std::string& path) {
  png_image png = {};
  png.version = PNG_IMAGE_VERSION;
  REQUIRE(png_image_begin_read_from_file(&png, path.c_str()));
  png.format = PNG_FORMAT_RGB;
  at::Tensor image = torch::empty({png.height, png.width, 3}, torch::kByte);
  REQUIRE(png_image_finish_read(&png, nullptr, image.data_ptr(), 0, nullptr));
  return image;
}

/// Writes pixels of any format with libpng.
void write_with_libpng(const std::string& path, int format, const at::Tensor& pixels, const at::Tensor& colors = {}) {
  png_image png = {};
  png.version = PNG_IMAGE_VERSION;
  png.height = static_cast<png_uint_32>(pixels.size(0));
  png.width = static_cast<png_uint_32>(pixels.size(1));
  png.format = static_cast<png_uint_32>(format);
  png.colormap_entries = colors.defined() ? static_cast<png_uint_32>(colors.size(0)) : 0;
  REQUIRE(png_image_write_to_file(&png, path.c_str(), 0, pixels.const_data_ptr(), 0,
                                  colors.defined() ? colors.const_data_ptr() : nullptr));
}

}  // namespace

TEST_CASE("A PNG file contains the given pixels", "[io][png]") {
  const test::TempDir folder;
  for (const auto& [height, width] : {std::pair(1, 1), std::pair(7, 300), std::pair(200, 3)}) {
    const at::Tensor image = torch::randint(0, 256, {height, width, 3}, torch::kByte);
    REQUIRE(write_png(folder / "f.png", image).ok());
    CHECK(at::equal(reference_png(folder / "f.png"), image));
    CHECK(at::equal(read_png(folder / "f.png").value(), image));
    REQUIRE(write_png(folder / "g.png", image.permute({1, 0, 2}).contiguous().permute({1, 0, 2})).ok());
    CHECK(test::read_bytes(folder / "f.png") == test::read_bytes(folder / "g.png"));
  }
}

TEST_CASE("A PNG file that is written in pieces has the bytes of a whole one, which are those of libpng", "[io][png]") {
  const test::TempDir folder;
  for (const auto& [height, width] : {std::pair(1, 1), std::pair(300, 200), std::pair(41, 999)}) {
    const at::Tensor image = torch::randint(0, 9, {height, width, 3}, torch::kByte);
    write_with_libpng(folder / "libpng.png", PNG_FORMAT_RGB, image);
    REQUIRE(write_png(folder / "whole.png", image).ok());
    const int64_t rows = height;
    REQUIRE(write_png(folder / "pieces.png", rows, width, [&](const AppendElements& append) {
              for (int64_t row = 0; row < rows; row += 7) {
                const absl::Status status = append(image.narrow(0, row, std::min<int64_t>(7, rows - row)));
                if (!status.ok()) return status;
              }
              return absl::OkStatus();
            }).ok());
    CHECK(test::read_bytes(folder / "whole.png") == test::read_bytes(folder / "libpng.png"));
    CHECK(test::read_bytes(folder / "pieces.png") == test::read_bytes(folder / "libpng.png"));
  }
  const test::TempDir empty;
  const auto two_rows = [](const AppendElements& append) { return append(torch::zeros({2, 4, 3}, torch::kByte)); };
  CHECK_THROWS_AS(write_png(empty / "f.png", 3, 4, two_rows), c10::ValueError);
  CHECK_THROWS_AS(write_png(empty / "f.png", 2, 5, two_rows), c10::ValueError);
  const auto stopped = [](const AppendElements&) { return absl::CancelledError("stopped"); };
  CHECK(write_png(empty / "f.png", 3, 4, stopped).code() == absl::StatusCode::kCancelled);
  CHECK(std::filesystem::is_empty(empty.path()));
}

TEST_CASE("Tensors that are not images are refused", "[io][png]") {
  const test::TempDir folder;
  CHECK_THROWS_AS(write_png(folder / "f.png", torch::zeros({3, 4, 3})), c10::ValueError);
  CHECK_THROWS_AS(write_png(folder / "f.png", torch::zeros({3, 4}, torch::kByte)), c10::ValueError);
  CHECK_THROWS_AS(write_png(folder / "f.png", torch::zeros({0, 4, 3}, torch::kByte)), c10::ValueError);
  CHECK(exit_code(write_png(folder / "no/f.png", torch::zeros({3, 4, 3}, torch::kByte))) == ExitCode::kStorage);
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("read_png gives three channels for grey, transparent and palette images", "[io][png]") {
  const test::TempDir folder;
  const at::Tensor grey = torch::randint(0, 256, {5, 7, 1}, torch::kByte);
  write_with_libpng(folder / "grey.png", PNG_FORMAT_GRAY, grey);
  CHECK(at::equal(read_png(folder / "grey.png").value(), grey.expand({5, 7, 3})));

  const at::Tensor rgba = torch::randint(0, 256, {4, 6, 4}, torch::kByte);
  write_with_libpng(folder / "rgba.png", PNG_FORMAT_RGBA, rgba);
  CHECK(at::equal(read_png(folder / "rgba.png").value(), rgba.slice(2, 0, 3)));

  const at::Tensor colors = torch::randint(0, 256, {10, 3}, torch::kByte);
  const at::Tensor indices = torch::randint(0, 10, {3, 9}, torch::kByte);
  write_with_libpng(folder / "palette.png", PNG_FORMAT_RGB_COLORMAP, indices, colors);
  CHECK(at::equal(read_png(folder / "palette.png").value(),
                  colors.index_select(0, indices.flatten().to(at::kLong)).view({3, 9, 3})));
}

TEST_CASE("read_png refuses files that are not images, cut or too large", "[io][png]") {
  const test::TempDir folder;
  CHECK(absl::IsNotFound(read_png(folder / "absent.png").status()));
  const auto refusal = [&](const std::string& bytes) {
    std::ofstream(folder / "bad.png", std::ios::binary) << bytes;
    const absl::Status status = read_png(folder / "bad.png").status();
    CHECK(exit_code(status) == ExitCode::kData);
    return error_line(status);
  };
  REQUIRE(write_png(folder / "good.png", torch::randint(0, 256, {20, 30, 3}, torch::kByte)).ok());
  const std::string good = test::read_bytes(folder / "good.png");
  for (const size_t size : {size_t{0}, size_t{7}, size_t{30}, good.size() / 2}) {
    CHECK(refusal(good.substr(0, size)).find("[data.png]") != std::string::npos);
  }
  // A header of 60,000 x 60,000 pixels; its CRC follows it.
  std::string huge = good;
  for (const size_t at : {size_t{16}, size_t{20}}) huge.replace(at, 4, std::string("\0\0\xea\x60", 4));
  const uLong crc = crc32(0, reinterpret_cast<const Bytef*>(huge.data()) + 12, 17);
  for (int i = 0; i < 4; ++i) huge[29 + i] = static_cast<char>(crc >> (24 - 8 * i));
  CHECK(refusal(huge).find("60000 x 60000") != std::string::npos);
}
