#pragma once
/// How patches reach the model: gathered on the device that holds the image, or copied by the loader's workers.

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
  kDevice,  ///< A batch is pixels and labels; patches are gathered in the step.
  kLoader   ///< A batch holds its patches: for scenes that do not fit on the device.
};

/// "device", "loader", or "auto": kDevice on the CPU, which holds the image anyway, and where every CUDA device has
/// four times the image's memory free. Synchronises with the devices then.
FeedKind choose_feed(const std::string& word, const at::Tensor& image, const std::vector<at::Device>& devices);

/// The image of a scene, and the two ways to train on patches of it. Either gives the same batches, bit for bit.
/// Any number of threads.
class Feed {
 public:
  /// `image`: (height + patch_size - 1, width + patch_size - 1, bands) float32 on the CPU, see gather_patches. With
  /// kDevice it is copied to each of `devices` that is another.
  Feed(FeedKind kind, at::Tensor image, int64_t patch_size, const std::vector<at::Device>& devices);

  /// Rows of `pixels` (n) int64 with labels (n) int64.
  std::shared_ptr<const Dataset> dataset(const at::Tensor& pixels, const at::Tensor& labels, bool augment) const;

  /// The patches of a batch of such a data set, (N, p, p, bands) float32 on the batch's device.
  at::Tensor patches(const Batch& batch) const;

  FeedKind kind() const { return kind_; }
  int64_t patch_size() const { return patch_size_; }
  const at::Tensor& image() const { return image_; }
  int64_t bands() const { return image_.size(2); }

 private:
  FeedKind kind_;
  at::Tensor image_;
  int64_t patch_size_;
  std::vector<at::Tensor> copies_;  // image_ on the devices
};

}  // namespace trainkit::hsi
