#pragma once
/// Source of patches: gathered on the device that holds the image, or copied by the loader's workers.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trainkit/data/batch.h"
#include "trainkit/data/dataset.h"

namespace trainkit::hsi {

enum class FeedKind {
  kDevice,  ///< A batch has pixels and labels; the step gathers the patches.
  kLoader   ///< A batch has patches, for scenes that do not fit on the device.
};

/// Parses "device", "loader" or "auto". auto is kDevice if every device can hold the image: the CPU always can, and a
/// CUDA device needs four times the image's size in free memory. auto synchronises the CUDA devices.
FeedKind choose_feed(const std::string& word, const at::Tensor& image, const std::vector<at::Device>& devices);

/// Holds the image of a scene and makes data sets of patches. Both kinds give the same batches, bit for bit.
/// Thread-safe.
class Feed {
 public:
  /// @param image (height + patch_size - 1, width + patch_size - 1, bands) float32 on the CPU, see gather_patches. With
  /// kDevice it is copied to each other device in `devices`.
  Feed(FeedKind kind, at::Tensor image, int64_t patch_size, const std::vector<at::Device>& devices);

  /// Makes a data set of `pixels` (n) int64 with labels (n) int64.
  std::shared_ptr<const Dataset> dataset(const at::Tensor& pixels, const at::Tensor& labels, bool augment) const;

  /// Returns the patches of a batch of such a data set, (N, p, p, bands) float32 on the batch's device.
  at::Tensor patches(const Batch& batch) const;

  FeedKind kind() const { return kind_; }
  int64_t patch_size() const { return patch_size_; }
  const at::Tensor& image() const { return image_; }
  int64_t bands() const { return image_.size(2); }

 private:
  FeedKind kind_;
  at::Tensor image_;
  int64_t patch_size_;
  std::vector<at::Tensor> copies_;  // image_ on each device
};

}  // namespace trainkit::hsi
