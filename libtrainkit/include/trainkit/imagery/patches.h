#pragma once
/// Square patches around the pixels of a hyperspectral image.
///
/// A patch keeps the bands as its last dimension, like the image. It consists of `patch_size` contiguous runs of the
/// image, and a batch of patches copies these runs. `.permute({0, 3, 1, 2})` of a batch has shape
/// (N, bands, rows, columns) in the channels_last memory format, without a copy.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "trainkit/data/dataset.h"

namespace trainkit {

/// Number of symmetries of a square: identity, flips and quarter turns. An orientation is a number below this one. Bit
/// 2 swaps i and j; bit 0 then counts rows r from the bottom, and bit 1 counts columns c from the right. Element (i, j)
/// of the patch is element (r, c) of the image.
inline constexpr int64_t kOrientations = 8;

/// Returns the orientation of a row in its epoch: a pure function of the key, uniform over the eight orientations.
uint8_t draw_orientation(const RowKey& key);

/// How gather_patches writes patches on the CPU.
enum class PatchStores {
  kAuto,      ///< kStreaming for 4 MiB and more, which would evict the next step's data from the cache; else kCached.
  kCached,    ///< Through the cache: for patches that are read again soon and fit.
  kStreaming  ///< Past the cache, in whole cache lines: avoids reading a line only to overwrite it.
};

/// Gathers the patches around `pixels`: (n, patch_size, patch_size, bands) float32, on the device of `image`.
///
/// @param image  (height + patch_size - 1, width + patch_size - 1, bands) float32, contiguous: a scene padded by
///   patch_size / 2 pixels on every side, so that each pixel has a complete patch.
/// @param pixels  (n) int64 on the same device: row * width + column in the unpadded scene.
/// @param orientations  (n) uint8 on the same device, each below kOrientations. If undefined, the identity is used.
///
/// On the CPU, LibTorch's threads share the patches (at::parallel_for). On CUDA, one kernel copies, flips and rotates;
/// the host does not wait. Throws c10::ValueError for a wrong shape, dtype or device or an even patch_size, and
/// c10::IndexError for a pixel outside the scene. On CUDA such a pixel traps the kernel, and a later call reports the
/// error.
at::Tensor gather_patches(const at::Tensor& image, const at::Tensor& pixels, int64_t patch_size,
                          const at::Tensor& orientations = {}, PatchStores stores = PatchStores::kAuto);
/// Writes the patches into `out`, (n, patch_size, patch_size, bands) float32, contiguous.
void gather_patches_out(const at::Tensor& out, const at::Tensor& image, const at::Tensor& pixels, int64_t patch_size,
                        const at::Tensor& orientations = {}, PatchStores stores = PatchStores::kAuto);

struct PatchOptions {
  /// Rows and columns of a patch. Must be odd, so that the pixel is in the centre.
  int64_t patch_size = 11;
  /// Draw a new orientation for each patch in each epoch (draw_orientation).
  bool augment = false;
};

/// Returns patches as rows, copied on the host: for scenes too large for the device. Fields:
///   x      (patch_size, patch_size, bands) float32
///   pixel  () int64, row * width + column
///   y      () int64, the label
/// Writes a batch in one pass, and past the cache if the batch is large.
class PatchDataset final : public Dataset {
 public:
  /// `image` is as for gather_patches, on the CPU, and shared; `pixels` and `labels` are (n) int64. Throws
  /// c10::ValueError for a wrong shape, dtype or device, and c10::IndexError for a pixel outside the scene.
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

/// Returns pixel indices as rows; gather_patches makes the patches on the device that holds the image:
///   gather_patches(image, batch["pixel"], patch_size, batch["orientation"])
/// equals the "x" of PatchDataset's batch bit for bit. Fields:
///   pixel        () int64, row * width + column
///   orientation  () uint8
///   y            () int64, the label
class PixelDataset final : public Dataset {
 public:
  /// `pixels` and `labels` are (n) int64 on the CPU. Throws c10::ValueError otherwise.
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
