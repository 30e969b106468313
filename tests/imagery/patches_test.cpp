#include "trainkit/imagery/patches.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <catch2/catch.hpp>
#include <map>

#include "contract/dataset_contract.h"
#include "core/device/gpu_operations.h"
#include "test_util.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

/// An image of random numbers with the border for patches of `size`.
at::Tensor image_of(int64_t height, int64_t width, int64_t bands, int64_t size) {
  at::manual_seed(7);
  return at::rand({height + size - 1, width + size - 1, bands});
}

/// The patch computed with LibTorch's own operations.
at::Tensor plain_patch(const at::Tensor& image, int64_t pixel, int64_t size, int64_t orientation) {
  const int64_t width = image.size(1) - size + 1;
  at::Tensor patch = image.narrow(0, pixel / width, size).narrow(1, pixel % width, size);
  if (orientation & 1) patch = patch.flip(0);
  if (orientation & 2) patch = patch.flip(1);
  if (orientation & 4) patch = patch.transpose(0, 1);
  return patch;
}

at::Tensor all_pixels(int64_t count) { return at::arange(count, at::kLong); }

}  // namespace

TEST_CASE("A patch is the part of the image around its pixel, in each orientation and of any size", "[data][patches]") {
  struct Case {
    int64_t size, bands;
  };
  for (const auto [size, bands] : {Case{1, 5}, Case{1, 64}, Case{3, 1}, Case{3, 16}, Case{5, 7}, Case{5, 204}}) {
    const at::Tensor image = image_of(6, 9, bands, size);
    const at::Tensor pixels = all_pixels(54).flip(0).repeat({3});
    const at::Tensor orientations = at::arange(pixels.numel()).remainder(kOrientations).to(at::kByte);
    for (const PatchStores stores : {PatchStores::kAuto, PatchStores::kCached, PatchStores::kStreaming}) {
      const at::Tensor plain = gather_patches(image, pixels, size, {}, stores);
      const at::Tensor turned = gather_patches(image, pixels, size, orientations, stores);
      REQUIRE(plain.sizes() == at::IntArrayRef({pixels.numel(), size, size, bands}));
      bool equal = true;
      for (int64_t n = 0; n < pixels.numel(); ++n) {
        const int64_t pixel = pixels[n].item<int64_t>();
        equal = equal && plain[n].equal(plain_patch(image, pixel, size, 0)) &&
                turned[n].equal(plain_patch(image, pixel, size, orientations[n].item<int64_t>()));
      }
      INFO("size " << size << ", bands " << bands << ", stores " << static_cast<int>(stores));
      CHECK(equal);
    }
  }
}

TEST_CASE("LibTorch's operations gather the same patches on a GPU without our kernel", "[data][patches]") {
  struct Case {
    int64_t size, bands;
  };
  for (const auto [size, bands] : {Case{1, 5}, Case{3, 1}, Case{3, 16}, Case{5, 7}}) {
    CAPTURE(size, bands);
    const at::Tensor image = image_of(6, 9, bands, size).requires_grad_();
    const at::Tensor pixels = all_pixels(54).flip(0).repeat({3});
    const at::Tensor orientations = at::arange(pixels.numel()).remainder(kOrientations).to(at::kByte);
    const at::Tensor plain = gather_patches(image, pixels, size);
    const at::Tensor turned = gather_patches(image, pixels, size, orientations);
    const trainkit::detail::GpuOperations gpu(true, /*has_kernels=*/false);
    CHECK(gather_patches(image, pixels, size).equal(plain));
    CHECK(gather_patches(image, pixels, size, orientations).equal(turned));
    CHECK(gather_patches(image, pixels.slice(0, 0, 0), size).numel() == 0);
    for (const int64_t outside : {int64_t{-1}, int64_t{54}}) {
      CHECK_THROWS_AS(gather_patches(image, at::full({1}, outside, at::kLong), size), c10::IndexError);
    }
  }
}

TEST_CASE("The eight orientations of a patch all differ", "[data][patches]") {
  const at::Tensor image = image_of(1, 1, 2, 3);
  const at::Tensor patches =
      gather_patches(image, at::zeros({8}, at::kLong), 3, at::arange(8, at::kLong).to(at::kByte));
  for (int64_t a = 0; a < 8; ++a) {
    for (int64_t b = 0; b < a; ++b) CHECK_FALSE(patches[a].equal(patches[b]));
  }
}

TEST_CASE("Non-temporal writes of patches touch no other memory, at any start address", "[data][patches]") {
  const at::Tensor image = image_of(4, 5, 3, 3);
  const at::Tensor pixels = all_pixels(20);
  const at::Tensor expected = gather_patches(image, pixels, 3, {}, PatchStores::kCached);
  for (int64_t begin = 0; begin < 40; ++begin) {
    const at::Tensor memory = at::full({expected.numel() + 80}, -1.0F);
    const at::Tensor out = memory.narrow(0, begin, expected.numel()).view(expected.sizes());
    gather_patches_out(out, image, pixels, 3, {}, PatchStores::kStreaming);
    REQUIRE(out.equal(expected));
    REQUIRE(memory.narrow(0, 0, begin).eq(-1).all().item<bool>());
    REQUIRE(memory.narrow(0, begin + expected.numel(), 80 - begin).eq(-1).all().item<bool>());
  }
}

TEST_CASE("Any number of threads gathers the same patches", "[data][patches]") {
  const at::Tensor image = image_of(40, 40, 30, 7);  // 9 MB of patches: several parts
  const at::Tensor pixels = all_pixels(1600);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor one = gather_patches(image, pixels, 7);
  at::set_num_threads(4);
  const at::Tensor four = gather_patches(image, pixels, 7);
  at::set_num_threads(threads);
  CHECK(one.equal(four));
}

TEST_CASE("A permuted batch of patches is channels_last without a copy", "[data][patches]") {
  const at::Tensor patches = gather_patches(image_of(4, 4, 6, 3), all_pixels(16), 3);
  const at::Tensor x = patches.permute({0, 3, 1, 2});
  CHECK(x.is_contiguous(at::MemoryFormat::ChannelsLast));
  CHECK(x.const_data_ptr() == patches.const_data_ptr());
}

TEST_CASE("Both datasets of patches satisfy the contract of a dataset", "[data][patches]") {
  const at::Tensor image = image_of(8, 9, 4, 5);
  const at::Tensor pixels = at::randperm(72).slice(0, 0, 50), labels = at::randint(6, {50}, at::kLong);
  for (const bool augment : {false, true}) {
    check_dataset_contract(
        std::make_shared<PatchDataset>(image, pixels, labels, PatchOptions{.patch_size = 5, .augment = augment}));
    check_dataset_contract(std::make_shared<PixelDataset>(pixels, labels, augment));
  }
}

TEST_CASE("Patches gathered on a device equal bit for bit those that workers copy", "[data][patches]") {
  const at::Tensor image = image_of(30, 31, 12, 7);
  const at::Tensor pixels = at::randperm(930).slice(0, 0, 400), labels = at::randint(6, {400}, at::kLong);
  for (const bool augment : {false, true}) {
    for (const int workers : {0, 1, 3}) {
      INFO("augment " << augment << ", workers " << workers);
      const auto loader_of = [&](std::shared_ptr<const Dataset> dataset) {
        return Prefetcher::create(std::move(dataset), RandomSampler(400, {.seed = 9}),
                                  {.batch_size = 32, .num_workers = workers, .persistent_workers = true})
            .value();
      };
      const auto copied = loader_of(
          std::make_shared<PatchDataset>(image, pixels, labels, PatchOptions{.patch_size = 7, .augment = augment}));
      const auto gathered = loader_of(std::make_shared<PixelDataset>(pixels, labels, augment));
      for (int epoch = 0; epoch < 3; ++epoch) {
        while (auto batch = copied->next().value()) {
          const auto centres = gathered->next().value();
          REQUIRE(centres);
          CHECK((*batch)["x"].equal(gather_patches(image, (*centres)["pixel"], 7, (*centres)["orientation"])));
          CHECK((*batch)["pixel"].equal((*centres)["pixel"]));
          CHECK((*batch)["y"].equal((*centres)["y"]));
        }
        REQUIRE_FALSE(gathered->next().value());
      }
    }
  }
}

TEST_CASE("Orientations depend on seed, epoch and row, and are equally frequent", "[data][patches]") {
  std::map<int, int> counts;
  int changes = 0;
  for (int64_t row = 0; row < 8000; ++row) {
    const RowKey key{.index = row, .epoch = 3, .seed = 5};
    const uint8_t drawn = draw_orientation(key);
    CHECK(draw_orientation(key) == drawn);
    ++counts[drawn];
    changes += draw_orientation({.index = row, .epoch = 4, .seed = 5}) != drawn;
    changes += draw_orientation({.index = row, .epoch = 3, .seed = 6}) != drawn;
  }
  CHECK(counts.size() == 8);
  for (const auto& [orientation, count] : counts) {
    INFO(orientation);
    CHECK(std::abs(count - 1000) < 120);  // four standard deviations
  }
  CHECK(std::abs(changes - 14000) < 200);
}

TEST_CASE("Pixels outside, wrong shapes and even sizes are refused", "[data][patches]") {
  const at::Tensor image = image_of(4, 5, 3, 3), pixels = all_pixels(20), labels = pixels;
  CHECK_THROWS_AS(gather_patches(image, pixels + 1, 3), c10::IndexError);
  CHECK_THROWS_AS(gather_patches(image, pixels - 1, 3), c10::IndexError);
  CHECK_THROWS_AS(gather_patches(image, pixels, 2), c10::ValueError);
  CHECK_THROWS_AS(gather_patches(image, pixels, -1), c10::ValueError);
  CHECK_THROWS_AS(gather_patches(image, pixels, 7), c10::ValueError);
  CHECK_THROWS_AS(gather_patches(image.to(at::kDouble), pixels, 3), c10::ValueError);
  CHECK_THROWS_AS(gather_patches(image.transpose(0, 1), pixels, 3), c10::ValueError);
  CHECK_THROWS_AS(gather_patches(image, pixels.to(at::kInt), 3), c10::ValueError);
  CHECK_THROWS_AS(gather_patches(image, pixels, 3, at::zeros({19}, at::kByte)), c10::ValueError);
  CHECK_THROWS_AS(gather_patches(image, pixels, 3, at::zeros({20}, at::kLong)), c10::ValueError);
  CHECK_THROWS_AS(gather_patches_out(at::empty({20, 3, 3, 4}), image, pixels, 3), c10::ValueError);
  CHECK_THROWS_AS(PatchDataset(image, pixels + 1, labels, {.patch_size = 3}), c10::IndexError);
  CHECK_THROWS_AS(PatchDataset(image, pixels, labels.slice(0, 1), {.patch_size = 3}), c10::ValueError);
  CHECK_THROWS_AS(PixelDataset(pixels, labels.slice(0, 1), false), c10::ValueError);
  CHECK(gather_patches(image, pixels.slice(0, 0, 0), 3).size(0) == 0);
  CHECK(PatchDataset(image, pixels, labels, {.patch_size = 3}).describe(7) == "pixel (1, 2)");
}
