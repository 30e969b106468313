#include "apps/hsi/hsi_place.h"
#include "hsi_classification/preprocess.h"
#include "memory/memory_recorder.h"
#include "test_util.h"
#include "trainkit/arrays/array_file.h"

using namespace trainkit;
using namespace trainkit::hsi;
using test::padded;
using test::values_of;

TEST_CASE("Standardised bands have mean 0 and standard deviation 1; a constant band is 0", "[hsi][preprocess]") {
  torch::manual_seed(1);
  at::Tensor cube =
      torch::randn({211, 97, 5}) * torch::tensor({1., 10., 1e-3, 1e4, 1.}) + torch::tensor({0., 5., 1., 1e6, 3.});
  cube = cube.to(torch::kFloat);
  cube.select(2, 4).fill_(0.1f);
  const BandStatistics statistics = band_statistics(cube);
  const at::Tensor exact = cube.to(torch::kDouble).view({-1, 5});
  CHECK(at::allclose(statistics.mean, exact.mean(0), 1e-12, 1e-12));
  CHECK(at::allclose(statistics.std.narrow(0, 0, 4), exact.std(0, false).narrow(0, 0, 4), 1e-10));
  CHECK(statistics.std[4].item<double>() == 1);
  const at::Tensor result = cube.clone();
  standardise(result, statistics);
  const at::Tensor rows = result.to(torch::kDouble).view({-1, 5});
  CHECK(rows.mean(0).abs().max().item<double>() < 1e-6);
  CHECK((rows.std(0, false) - torch::tensor({1., 1., 1., 1., 0.}, torch::kDouble)).abs().max().item<double>() < 1e-6);
}

TEST_CASE("Principal components are orthonormal, sorted, and reconstruct the cube", "[hsi][preprocess]") {
  torch::manual_seed(2);
  // Three directions of decreasing strength in eight bands, and a little noise.
  const at::Tensor cube = (torch::randn({150, 140, 3}) * torch::tensor({5., 2., 1.})).matmul(torch::randn({3, 8})) + 3 +
                          1e-3 * torch::randn({150, 140, 8});
  const Pca pca = fit_pca(cube, 3);
  CHECK(at::allclose(pca.components.matmul(pca.components.t()), torch::eye(3, torch::kDouble), 0, 1e-10));
  CHECK(pca.explained_variance.sum().item<double>() > 0.9999);
  const at::Tensor share = pca.explained_variance;
  CHECK((share[0] > share[1]).item<bool>());
  CHECK((share[1] > share[2]).item<bool>());
  for (int64_t i = 0; i < 3; ++i) {
    const at::Tensor row = pca.components[i];
    CHECK(row[row.abs().argmax()].item<double>() > 0);
  }
  const at::Tensor projected = torch::empty({150, 140, 3});
  apply_pca(cube, pca, projected);
  const at::Tensor rebuilt = projected.to(torch::kDouble).matmul(pca.components) + pca.mean;
  CHECK((rebuilt - cube).abs().max().item<double>() < 0.02);
  // The variance along each direction equals the reported one.
  const at::Tensor variance = projected.to(torch::kDouble).view({-1, 3}).var(0, false);
  const double whole = cube.to(torch::kDouble).view({-1, 8}).var(0, false).sum().item<double>();
  CHECK(at::allclose(variance / whole, share, 1e-4));
  const Pca again = fit_pca(cube, 3);
  CHECK(at::equal(again.components, pca.components));
  CHECK_THROWS_AS(fit_pca(cube, 9), c10::ValueError);
  CHECK_THROWS_AS(fit_pca(cube, 0), c10::ValueError);
  const at::Tensor constant = torch::ones({3, 3, 2});
  apply_pca(constant, fit_pca(constant, 2), constant);
  CHECK(at::isfinite(constant).all().item<bool>());
}

TEST_CASE("Borders are mirrored as torch does it, also beyond the width that torch supports", "[hsi][preprocess]") {
  const at::Tensor cube = torch::rand({6, 5, 3});
  for (const int64_t radius : {0, 1, 4}) {
    const at::Tensor expected =
        torch::reflection_pad2d(cube.permute({2, 0, 1}).unsqueeze(0), {radius, radius, radius, radius})[0].permute(
            {1, 2, 0});
    CHECK(at::equal(padded(cube, radius), expected));
  }
  // numpy.pad([0, 1, 2], 5, "reflect")
  const at::Tensor line = torch::arange(3).view({3, 1, 1});
  const at::Tensor image = padded(line, 5);
  CHECK(image.sizes() == at::IntArrayRef{13, 11, 1});
  CHECK(at::equal(image.select(1, 7).flatten(), torch::tensor({1, 0, 1, 2, 1, 0, 1, 2, 1, 0, 1, 2, 1})));
  CHECK_THROWS_AS(mirror_borders(line, -1), c10::ValueError);
  CHECK_THROWS_AS(mirror_borders(line, 1), c10::ValueError);
}

namespace {

PreparedScene prepared(const at::Tensor& values, int64_t components, int64_t radius) {
  Cube cube = values;
  Digest digest;
  PreparedScene scene = prepare_scene(cube, std::nullopt, components, radius, digest).value();
  CHECK(digest.hex() == Digest::of({static_cast<const char*>(values.const_data_ptr()), values.nbytes()}));
  return scene;
}

}  // namespace

TEST_CASE("A prepared scene is standardised over whole pieces of its pixels, and its strips have its bits",
          "[hsi][preprocess]") {
  torch::manual_seed(3);
  const int64_t components = GENERATE(0, 4), radius = GENERATE(0, 3);
  // More than one piece, whose borders lie within rows.
  const at::Tensor values = torch::rand({150, 133, 9}) * 1000;
  const PreparedScene scene = prepared(values, components, radius);
  const at::Tensor inner = scene.image.narrow(0, radius, 150).narrow(1, radius, 133);
  if (components == 0) CHECK(at::equal(inner, prepare_spectra(values, scene.preprocessing)));
  CHECK(at::allclose(inner, prepare_spectra(values, scene.preprocessing), 1e-4, 1e-4));
  CHECK(at::equal(padded(inner, radius), scene.image));
  for (const auto& [begin, end] : {std::pair(0, 150), {0, 1}, {2, 60}, {61, 62}, {100, 150}, {149, 150}}) {
    CAPTURE(components, radius, begin, end);
    const auto strip = prepare_strip(values, scene.preprocessing, radius, begin, end);
    REQUIRE(strip.ok());
    CHECK(at::equal(*strip, scene.image.narrow(0, begin, end - begin + 2 * radius)));
  }
}

TEST_CASE("Strips of a scene with fewer rows than its borders have its bits", "[hsi][preprocess]") {
  const at::Tensor values = torch::rand({3, 2, 4});
  const PreparedScene scene = prepared(values, 0, 7);
  for (int64_t begin = 0; begin < 3; ++begin) {
    CHECK(
        at::equal(*prepare_strip(values, scene.preprocessing, 7, begin, begin + 1), scene.image.narrow(0, begin, 15)));
  }
}

TEST_CASE("A scene is prepared in the memory of its image, and a strip in that of the strip", "[hsi][preprocess]") {
  const test::TempDir folder;
  constexpr int64_t kSide = 500, kBands = 60, kCube = kSide * kSide * kBands * 4, kPieces = 40 << 20;
  REQUIRE(write_npy(folder / "cube.npy", torch::rand({kSide, kSide, kBands})).ok());
  const auto allocated = [](const auto& call) {
    const MemoryRecorder recorder(MemoryClass::kActivations, /*keep_trace=*/false);
    call();
    return recorder.peak().total();
  };
  for (const int64_t components : {0, 6}) {
    PreparedScene scene;
    const int64_t peak = allocated([&] {
      Cube cube = load_cube(folder / "cube.npy").value();
      Digest digest;
      scene = prepare_scene(cube, std::nullopt, components, 4, digest).value();
    });
    INFO(components << " components: " << peak << " bytes for a cube of " << kCube);
    const auto image = static_cast<int64_t>(scene.image.nbytes());
    CHECK(peak < (components == 0 ? image : kCube + image) + kPieces);  // and rows in float32, pieces in float64
    scene.image.reset();
    const Cube again = load_cube(folder / "cube.npy").value();
    const int64_t strip = allocated([&] {
      for (int64_t row = 0; row < kSide; row += 100) {
        REQUIRE(prepare_strip(again, scene.preprocessing, 4, row, row + 20).ok());
      }
    });
    INFO(strip << " bytes for 20 rows");
    CHECK(strip < kPieces);
  }
}
