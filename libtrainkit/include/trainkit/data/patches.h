#pragma once
/// Square patches around the pixels of an image with many bands (a hyperspectral scene).
///
/// A patch keeps its bands last, as the image does: it is then `patch_size` runs of the image's memory, and a batch of
/// them is a copy of runs. `.permute({0, 3, 1, 2})` of a batch is (N, bands, rows, columns) in the memory format that
/// convolutions want, channels_last, without a copy.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "trainkit/data/dataset.h"

namespace trainkit {

/// The ways to lay a square on itself: identity, flips and quarter turns. An orientation below this number is made of
/// bits: element (i, j) of the patch is (r, c) of the image, where r, c = i, j, swapped with bit 2; bit 0 then counts
/// the rows r from the bottom, bit 1 the columns c from the right.
inline constexpr int64_t kOrientations = 8;

/// The orientation of a row in its epoch: a function of the key alone, each of the eight equally likely.
uint8_t draw_orientation(const RowKey& key);

/// How patches are written on the CPU.
enum class PatchStores {
  kAuto,      ///< kStreaming for 4 MiB and more: they would push out of the cache what the next step wants.
  kCached,    ///< Through the cache: for what is read again at once and fits.
  kStreaming  ///< Past the cache, whole lines at a time: no line is read only to be overwritten.
};

/// The patches around `pixels`: (n, patch_size, patch_size, bands) float32, on the device of `image`.
///
/// @param image  (height + patch_size - 1, width + patch_size - 1, bands) float32, contiguous: a scene whose border was
///   extended by patch_size / 2 pixels on every side, so that each pixel has a whole patch.
/// @param pixels  (n) int64 on that device: row * width + column in the scene without its border.
/// @param orientations  (n) uint8 on that device, each below kOrientations; undefined: the identity.
///
/// On the CPU the patches are shared by LibTorch's threads (at::parallel_for); on CUDA one kernel copies, flips and
/// turns, and the host waits for nothing. Throws c10::ValueError for another shape, dtype or device or an even
/// patch_size, c10::IndexError for a pixel outside the scene; on CUDA such a pixel stops the kernel instead, and the
/// error comes with a later call.
at::Tensor gather_patches(const at::Tensor& image, const at::Tensor& pixels, int64_t patch_size,
                          const at::Tensor& orientations = {}, PatchStores stores = PatchStores::kAuto);
/// The same into `out`, (n, patch_size, patch_size, bands) float32, contiguous.
void gather_patches_out(const at::Tensor& out, const at::Tensor& image, const at::Tensor& pixels, int64_t patch_size,
                        const at::Tensor& orientations = {}, PatchStores stores = PatchStores::kAuto);

struct PatchOptions {
  /// Rows and columns of a patch; odd, so that its pixel is in the middle.
  int64_t patch_size = 11;
  /// Lay each patch in another orientation in each epoch (draw_orientation).
  bool augment = false;
};

/// Rows that are patches, copied on the host: for scenes that a device does not hold. Fields:
///   x      (patch_size, patch_size, bands) float32
///   pixel  () int64, row * width + column
///   y      () int64, the label
/// A batch is written in one pass, past the cache if it is large.
class PatchDataset final : public Dataset {
 public:
  /// `image` as for gather_patches, on the CPU, shared; `pixels` and `labels` (n) int64. Throws c10::ValueError for
  /// another shape, dtype or device, c10::IndexError for a pixel outside the scene.
  PatchDataset(at::Tensor image, const at::Tensor& pixels, const at::Tensor& labels, const PatchOptions& options);

  int64_t size() const override { return static_cast<int64_t>(pixels_.size()); }
  const std::vector<FieldSpec>& fields() const override { return fields_; }
  void get(const RowKey& key, const BatchView& out, int64_t at) const override;
  void get_batch(std::span<const RowKey> keys, const BatchView& out) const override;
  /// "pixel (12, 40)"
  std::string describe(int64_t index) const override;

 private:
  at::Tensor image_;
  std::vector<int64_t> pixels_, labels_;
  PatchOptions options_;
  std::vector<FieldSpec> fields_;
};

/// The same rows without their patches, which gather_patches makes on the device that holds the image:
///   gather_patches(image, batch["pixel"], patch_size, batch["orientation"])
/// is bit for bit the "x" of PatchDataset's batch. Fields:
///   pixel        () int64, row * width + column
///   orientation  () uint8
///   y            () int64, the label
class PixelDataset final : public Dataset {
 public:
  /// `pixels` and `labels` (n) int64 on the CPU. Throws c10::ValueError if they are not.
  PixelDataset(const at::Tensor& pixels, const at::Tensor& labels, bool augment);

  int64_t size() const override { return static_cast<int64_t>(pixels_.size()); }
  const std::vector<FieldSpec>& fields() const override { return fields_; }
  void get(const RowKey& key, const BatchView& out, int64_t at) const override;

 private:
  std::vector<int64_t> pixels_, labels_;
  bool augment_;
  std::vector<FieldSpec> fields_;
};

}  // namespace trainkit
