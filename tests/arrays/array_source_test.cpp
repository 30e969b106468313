// Named arrays of files of any format.
#include "trainkit/arrays/array_source.h"

#include <ATen/Functions.h>

#include <filesystem>
#include <fstream>

#include "peak_memory.h"
#include "sanitizers.h"
#include "temp_dir.h"
#include "test_util.h"
#include "trainkit/arrays/array_file.h"
#include "trainkit/arrays/mat.h"
#include "trainkit/core/fs.h"
#include "trainkit/io/safetensors.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

at::Tensor cube() { return at::arange(24, at::kShort).view({2, 3, 4}); }

std::shared_ptr<const ArraySource> source_of(const std::string& path) {
  auto source = ArraySource::open(path);
  INFO(source.status());
  REQUIRE(source.ok());
  return *source;
}

}  // namespace

TEST_CASE("The contents of a file tell its format, not its name", "[arrays][source]") {
  const TempDir dir;
  REQUIRE(write_npy(dir / "a.bin", cube()).ok());
  const auto npy = source_of(dir / "a.bin");
  CHECK(npy->format() == "a NumPy array");
  CHECK(npy->read(npy->choose({.what = "the cube", .given = "ignored"}).value()).value().equal(cube()));
  REQUIRE(write_mat(dir / "b.npy", std::vector<std::pair<std::string, at::Tensor>>{{"cube", cube()}}).ok());
  const auto mat = source_of(dir / "b.npy");
  CHECK(mat->format() == "a MATLAB file");
  CHECK(mat->arrays().at(0).sizes == std::vector<int64_t>{2, 3, 4});
  CHECK(mat->read("cube").value().equal(cube()));
  REQUIRE(save_safetensors(Fs::posix(), dir / "c.mat", {{"x", cube()}, {"y", at::ones({5})}}).ok());
  const auto tensors = source_of(dir / "c.mat");
  CHECK(tensors->format() == "a safetensors file");
  CHECK(tensors->arrays().size() == 2);
  CHECK(tensors->read("x").value().equal(cube()));
  REQUIRE(write_png(dir / "d.x", at::full({2, 3, 3}, 7, at::kByte)).ok());
  CHECK(source_of(dir / "d.x")->format() == "a PNG image");
  std::ofstream(dir / "e.hdr") << "ENVI\nsamples = 1\nlines = 1\nbands = 2\ndata type = 1\ninterleave = bsq\n"
                                  "wavelength = {400, 500}\n";
  std::ofstream(dir / "e.img") << "ab";
  const auto envi = source_of(dir / "e.hdr");
  CHECK(envi->format() == "an ENVI cube");
  CHECK(envi->read("array").value().equal(at::tensor({97, 98}, at::kByte).view({1, 1, 2})));
  CHECK(envi->numbers("wavelength").value() == std::vector<double>{400, 500});
  CHECK(envi->numbers("gain").value().empty());
  std::ofstream(dir / "f.txt") << "no arrays";
  CHECK(id_of(ArraySource::open(dir / "f.txt").status()) == "data.array");
  CHECK_FALSE(ArraySource::open(dir / "none.npy").ok());
}

TEST_CASE("An array is chosen by its name, a usual name or as the only one that fits", "[arrays][source]") {
  const TempDir dir;
  REQUIRE(
      save_safetensors(Fs::posix(), dir / "a.safetensors", {{"a", cube()}, {"b", at::ones({5})}, {"c", cube()}}).ok());
  const auto source = source_of(dir / "a.safetensors");
  const auto fits = [](int64_t rank) {
    return [rank](const ArrayInfo& array) -> absl::StatusOr<bool> { return std::ssize(array.sizes) == rank; };
  };
  CHECK(source->choose({.what = "the cube", .flag = "--key", .fits = fits(1)}).value() == "b");
  CHECK(source->choose({.what = "the cube", .flag = "--key", .usual = {"z", "c"}, .fits = fits(1)}).value() == "c");
  CHECK(source->choose({.what = "the cube", .flag = "--key", .given = "a", .usual = {"c"}}).value() == "a");
  const auto error = [&](int64_t rank) {
    return error_line(source->choose({.what = "the cube", .flag = "--key", .fits = fits(rank)}).status());
  };
  CHECK_THAT(error(3), Catch::Contains("more than one variable can be the cube (got 'a, c'"));
  CHECK_THAT(error(2), Catch::Contains("no variable can be the cube (got 'b (5 F32), a (2x3x4 I16), c (2x3x4 I16)'"));
}

TEST_CASE("A damaged file is reported by the reader of its format", "[arrays][source]") {
  const TempDir dir;
  for (const auto& [name, id] : {std::pair("a.npy", "data.npy"), {"a.mat", "data.mat"}, {"a.png", "data.png"}}) {
    std::ofstream(dir / name) << "damaged";
    const auto source = ArraySource::open(dir / name);
    INFO(name);
    CHECK(id_of(source.ok() ? (*source)->read("array").status() : source.status()) == id);
  }
}

TEST_CASE("Rows that were read from a large file do not stay in memory", "[arrays][source]") {
  if (kSanitized) TRAINKIT_SKIP("a sanitizer's own memory grows");
  const TempDir dir;
  constexpr int64_t kRows = 640, kRow = 1 << 20;
  std::ofstream(dir / "a.hdr") << "ENVI\nsamples = 1024\nlines = 640\nbands = 1024\ndata type = 1\ninterleave = bip\n";
  std::ofstream(dir / "a.img") << "";
  std::filesystem::resize_file(dir / "a.img", kRows * kRow);  // takes no space on the disk
  const auto source = source_of(dir / "a.hdr");
  reset_peak_memory();
  const int64_t before = peak_memory();
  for (int64_t row = 0; row < kRows; row += 4) {
    REQUIRE(source->read_rows("", row, 4).value().sum().item<int64_t>() == 0);
  }
  CHECK(peak_memory() - before < kRows * kRow / 2);  // the allocator may keep blocks
}
