#include "hsi_classification/feed.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "trainkit/imagery/patches.h"

namespace trainkit::hsi {

FeedKind choose_feed(const std::string& word, const at::Tensor& image, const std::vector<at::Device>& devices) {
  if (word == "device") return FeedKind::kDevice;
  if (word == "loader") return FeedKind::kLoader;
  const bool fits = std::all_of(devices.begin(), devices.end(), [&](at::Device device) {
    if (device.is_cpu()) return true;
    const auto index = std::max<c10::DeviceIndex>(device.index(), 0);
    return image.nbytes() < at::accelerator::getMemoryInfo(index).first / 4;
  });
  return fits ? FeedKind::kDevice : FeedKind::kLoader;
}

Feed::Feed(FeedKind kind, at::Tensor image, int64_t patch_size, const std::vector<at::Device>& devices)
    : kind_(kind), image_(std::move(image)), patch_size_(patch_size) {
  copies_.push_back(image_);
  if (kind_ == FeedKind::kLoader) return;
  for (const at::Device device : devices) {
    const bool there =
        std::any_of(copies_.begin(), copies_.end(), [&](const at::Tensor& copy) { return copy.device() == device; });
    if (!there) copies_.push_back(image_.to(device));
  }
}

std::shared_ptr<const Dataset> Feed::dataset(const at::Tensor& pixels, const at::Tensor& labels, bool augment) const {
  if (kind_ == FeedKind::kDevice) return std::make_shared<PixelDataset>(pixels, labels, augment);
  return std::make_shared<PatchDataset>(image_, pixels, labels,
                                        PatchOptions{.patch_size = patch_size_, .augment = augment});
}

at::Tensor Feed::patches(const Batch& batch) const {
  if (kind_ == FeedKind::kLoader) return batch["x"];
  const at::Tensor& pixels = batch["pixel"];
  const auto here = std::find_if(copies_.begin(), copies_.end(),
                                 [&](const at::Tensor& copy) { return copy.device() == pixels.device(); });
  TORCH_CHECK(here != copies_.end(), "the image is not on ", pixels.device());
  return gather_patches(*here, pixels, patch_size_, batch["orientation"]);
}

}  // namespace trainkit::hsi
