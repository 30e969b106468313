#include "hsi_classification/preprocess.h"
#include "test_util.h"

using namespace trainkit;
using namespace trainkit::hsi;

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
  const at::Tensor result = standardise(cube, statistics);
  CHECK(result.scalar_type() == torch::kFloat);
  CHECK(result.sizes() == cube.sizes());
  const at::Tensor rows = result.to(torch::kDouble).view({-1, 5});
  CHECK(rows.mean(0).abs().max().item<double>() < 1e-6);
  CHECK((rows.std(0, false) - torch::tensor({1., 1., 1., 1., 0.}, torch::kDouble)).abs().max().item<double>() < 1e-6);
}

TEST_CASE("Statistics of selected pixels use only those pixels", "[hsi][preprocess]") {
  const at::Tensor cube = torch::arange(24, torch::kFloat).view({4, 3, 2});
  const BandStatistics statistics = band_statistics(cube, torch::tensor({0, 11}));
  CHECK(at::equal(statistics.mean, torch::tensor({11., 12.}, torch::kDouble)));
  CHECK(at::equal(statistics.std, torch::tensor({11., 11.}, torch::kDouble)));
  CHECK_THROWS_AS(band_statistics(cube, torch::empty({0}, torch::kLong)), c10::ValueError);
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
  const at::Tensor projected = apply_pca(cube, pca);
  CHECK(projected.sizes() == at::IntArrayRef{150, 140, 3});
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
  CHECK(at::isfinite(apply_pca(torch::ones({3, 3, 2}), fit_pca(torch::ones({3, 3, 2}), 2))).all().item<bool>());
}

TEST_CASE("Borders are mirrored as torch does it, also beyond the width that torch supports", "[hsi][preprocess]") {
  const at::Tensor cube = torch::rand({6, 5, 3});
  for (const int64_t radius : {0, 1, 4}) {
    const at::Tensor expected =
        torch::reflection_pad2d(cube.permute({2, 0, 1}).unsqueeze(0), {radius, radius, radius, radius})[0].permute(
            {1, 2, 0});
    CHECK(at::equal(pad_mirrored(cube, radius), expected));
  }
  // numpy.pad([0, 1, 2], 5, "reflect")
  const at::Tensor line = torch::arange(3).view({3, 1, 1});
  const at::Tensor padded = pad_mirrored(line, 5);
  CHECK(padded.sizes() == at::IntArrayRef{13, 11, 1});
  CHECK(at::equal(padded.select(1, 7).flatten(), torch::tensor({1, 0, 1, 2, 1, 0, 1, 2, 1, 0, 1, 2, 1})));
  CHECK_THROWS_AS(pad_mirrored(line, -1), c10::ValueError);
}
