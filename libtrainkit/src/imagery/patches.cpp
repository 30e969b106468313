#include "trainkit/imagery/patches.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/where.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "core/device/gpu_kernel_support.h"
#include "core/device/gpu_launch.h"
#include "core/device/gpu_operations.h"
#include "core/machine/parallel.h"
#include "data/datasets/scratch.h"
#include "imagery/patch_gather.h"

namespace trainkit {
namespace {

constexpr uint64_t kOrientationStream = 0x6f7269656e740001;  // separates orientations from other uses of a row's key
constexpr int64_t kStreamingBytes = int64_t{4} << 20;
constexpr int64_t kGrainBytes = int64_t{256} << 10;  // minimum of work for another thread

detail::PatchSource source_of(const at::Tensor& image, int64_t patch_size) {
  TORCH_CHECK_VALUE(patch_size >= 1 && patch_size % 2 == 1, "patch_size must be odd and >= 1, got ", patch_size);
  TORCH_CHECK_VALUE(image.defined() && image.dim() == 3 && image.scalar_type() == at::kFloat && image.is_contiguous(),
                    "image: expected (height, width, bands), float32 and contiguous");
  const detail::PatchSource source{.image = image.const_data_ptr<float>(),
                                   .height = image.size(0) - patch_size + 1,
                                   .width = image.size(1) - patch_size + 1,
                                   .bands = image.size(2),
                                   .patch_size = patch_size};
  TORCH_CHECK_VALUE(source.height >= 1 && source.width >= 1 && source.bands >= 1, "image: sizes ", image.sizes(),
                    " are too small for a patch_size of ", patch_size);
  TORCH_CHECK_VALUE(source.patch_floats() < (int64_t{1} << 31), "a patch of ", patch_size, " x ", patch_size, " x ",
                    source.bands, " is too large");
  return source;
}

void check_inside(const detail::PatchSource& source, const int64_t* pixels, int64_t count) {
  for (int64_t n = 0; n < count; ++n) {
    TORCH_CHECK_INDEX(pixels[n] >= 0 && pixels[n] < source.pixels(), "pixel ", pixels[n], " is out of range for ",
                      source.height, " x ", source.width, " pixels");
  }
}

std::vector<int64_t> to_vector(const at::Tensor& values, const char* name) {
  TORCH_CHECK_VALUE(values.defined() && values.dim() == 1 && values.scalar_type() == at::kLong && values.is_cpu(), name,
                    ": expected (n) int64 on the CPU");
  const at::Tensor contiguous = values.contiguous();
  return {contiguous.const_data_ptr<int64_t>(), contiguous.const_data_ptr<int64_t>() + contiguous.numel()};
}

void gather_on_cpu(const detail::PatchSource& source, const int64_t* pixels, const uint8_t* orientations, int64_t count,
                   float* out, PatchStores stores) {
  check_inside(source, pixels, count);
  const int64_t patch_bytes = source.patch_floats() * static_cast<int64_t>(sizeof(float));
  const bool streaming =
      stores == PatchStores::kStreaming || (stores == PatchStores::kAuto && count * patch_bytes >= kStreamingBytes);
  detail::parallel_for(0, count, std::max<int64_t>(1, kGrainBytes / patch_bytes), [&](int64_t begin, int64_t end) {
    detail::copy_patches(source, pixels + begin, orientations ? orientations + begin : nullptr, end - begin,
                         out + begin * source.patch_floats(), streaming);
  });
}

/// Returns whether to gather with LibTorch's operations: if this build's kernel does not run on the image's GPU, or if
/// the CPU simulates such a GPU (core/device/gpu_operations.h).
bool gathers_by_libtorch(const at::Tensor& image) {
#ifdef TRAINKIT_WITH_CUDA
  if (image.is_cuda()) return !has_gpu_kernels(image.device());
#endif
  return image.is_cpu() && detail::GpuOperations::wanted() && !detail::GpuOperations::has_kernels();
}

/// Selects the pixels of all patches by index. Never synchronises. Allocates several temporaries of 8 bytes per pixel
/// of the patches.
void gather_by_libtorch(const at::Tensor& out, const at::Tensor& image, const detail::PatchSource& source,
                        const at::Tensor& pixels, const at::Tensor& orientations) {
  const c10::AutoGradMode no_gradients(false);
  const int64_t size = source.patch_size;
  const at::Tensor steps = at::arange(size, pixels.options());
  const at::Tensor i = steps.view({1, size, 1}), j = steps.view({1, 1, size});
  at::Tensor row = i, column = j;
  if (orientations.defined()) {
    const at::Tensor code = orientations.view({-1, 1, 1});
    const auto has = [&](int64_t bit) { return code.bitwise_and(bit).ne(0); };
    row = at::where(has(4), j, i);
    column = at::where(has(4), i, j);
    row = at::where(has(1), size - 1 - row, row);
    column = at::where(has(2), size - 1 - column, column);
  }
  const at::Tensor corner = pixels.view({-1, 1, 1});
  const at::Tensor index =
      (corner.floor_divide(source.width) + row) * image.size(1) + corner.remainder(source.width) + column;
  // Use an index past the end for a pixel outside the scene, so that index_select reports it as the kernel does.
  const at::Tensor is_inside = corner.ge(0).logical_and(corner.lt(source.pixels()));
  const at::Tensor checked = at::where(is_inside, index, image.size(0) * image.size(1));
  at::Tensor rows = out.view({-1, source.bands});
  at::index_select_out(rows, image.view({-1, source.bands}), 0, checked.view({-1}));
}

}  // namespace

uint8_t draw_orientation(const RowKey& key) {
  return static_cast<uint8_t>(RandomStream(key.is_first_draw()
                                               ? hash_key(kOrientationStream, key.seed, key.epoch, key.index)
                                               : hash_key(kOrientationStream, key.seed, key.epoch, key.index, key.draw))
                                  .below(kOrientations));
}

at::Tensor gather_patches(const at::Tensor& image, const at::Tensor& pixels, int64_t patch_size,
                          const at::Tensor& orientations, PatchStores stores) {
  (void)source_of(image, patch_size);  // checks the image before allocating
  at::Tensor out = at::empty({pixels.numel(), patch_size, patch_size, image.size(2)}, image.options());
  gather_patches_out(out, image, pixels, patch_size, orientations, stores);
  return out;
}

void gather_patches_out(const at::Tensor& out, const at::Tensor& image, const at::Tensor& pixels, int64_t patch_size,
                        const at::Tensor& orientations, PatchStores stores) {
  const detail::PatchSource source = source_of(image, patch_size);
  TORCH_CHECK_VALUE(pixels.dim() == 1 && pixels.scalar_type() == at::kLong && pixels.device() == image.device(),
                    "pixels: expected (n) int64 on ", image.device());
  TORCH_CHECK_VALUE(
      !orientations.defined() || (orientations.sizes() == pixels.sizes() && orientations.scalar_type() == at::kByte &&
                                  orientations.device() == image.device()),
      "orientations: expected (n) uint8 on ", image.device());
  const int64_t count = pixels.numel();
  TORCH_CHECK_VALUE(out.sizes() == at::IntArrayRef({count, patch_size, patch_size, source.bands}) &&
                        out.scalar_type() == at::kFloat && out.is_contiguous() && out.device() == image.device(),
                    "out: expected (n, patch_size, patch_size, bands) float32, contiguous, on ", image.device());
  const at::Tensor index = pixels.contiguous();
  const at::Tensor turned = orientations.defined() ? orientations.contiguous() : orientations;
  if (gathers_by_libtorch(image)) return gather_by_libtorch(out, image, source, index, turned);
  const uint8_t* const codes = turned.defined() ? turned.const_data_ptr<uint8_t>() : nullptr;
  if (image.is_cpu()) {
    return gather_on_cpu(source, index.const_data_ptr<int64_t>(), codes, count, out.mutable_data_ptr<float>(), stores);
  }
#ifdef TRAINKIT_WITH_CUDA
  TORCH_CHECK_VALUE(image.is_cuda(), "image: must be on the CPU or a CUDA device, got ", image.device());
  detail::launch_on(image.device(), [&](void* stream) {
    return detail::launch_gather_patches(source, index.const_data_ptr<int64_t>(), codes, count,
                                         out.mutable_data_ptr<float>(), stream);
  });
#else
  TORCH_CHECK_VALUE(false, "image: must be on the CPU (this build has no CUDA), got ", image.device());
#endif
}

PatchDataset::PatchDataset(at::Tensor image, const at::Tensor& pixels, const at::Tensor& labels,
                           const PatchOptions& options)
    : image_(std::move(image)),
      pixels_(to_vector(pixels, "pixels")),
      labels_(to_vector(labels, "labels")),
      options_(options) {
  const detail::PatchSource source = source_of(image_, options_.patch_size);
  TORCH_CHECK_VALUE(image_.is_cpu(), "image: must be on the CPU, got ", image_.device());
  TORCH_CHECK_VALUE(labels_.size() == pixels_.size(), "labels: expected ", pixels_.size(), ", got ", labels_.size());
  check_inside(source, pixels_.data(), size());
  fields_ = {{"x", at::kFloat, {options_.patch_size, options_.patch_size, source.bands}},
             {"pixel", at::kLong, {}},
             {"y", at::kLong, {}}};
}

void PatchDataset::get(const RowKey& key, const BatchView& out, int64_t at) const {
  get_batch({&key, 1}, out.slice(at, 1));
}

void PatchDataset::get_batch(std::span<const RowKey> keys, const BatchView& out) const {
  if (keys.empty()) return;
  const detail::PatchSource source = source_of(image_, options_.patch_size);
  detail::Scratch<uint8_t> orientations;
  orientations->resize(options_.augment ? keys.size() : 0);
  auto* const pixels = out.row<int64_t>(1, 0);
  auto* const labels = out.row<int64_t>(2, 0);
  for (size_t i = 0; i < keys.size(); ++i) {
    pixels[i] = pixels_[static_cast<size_t>(keys[i].index)];
    labels[i] = labels_[static_cast<size_t>(keys[i].index)];
    if (options_.augment) (*orientations)[i] = draw_orientation(keys[i]);
  }
  const auto count = static_cast<int64_t>(keys.size());
  detail::copy_patches(source, pixels, options_.augment ? orientations->data() : nullptr, count, out.row<float>(0, 0),
                       count * out.row_bytes(0) >= kStreamingBytes);
}

std::string PatchDataset::describe(int64_t index) const {
  const int64_t width = image_.size(1) - options_.patch_size + 1;
  const int64_t pixel = pixels_[static_cast<size_t>(index)];
  return "pixel (" + std::to_string(pixel / width) + ", " + std::to_string(pixel % width) + ")";
}

PixelDataset::PixelDataset(const at::Tensor& pixels, const at::Tensor& labels, bool augment)
    : pixels_(to_vector(pixels, "pixels")), labels_(to_vector(labels, "labels")), augment_(augment) {
  TORCH_CHECK_VALUE(labels_.size() == pixels_.size(), "labels: expected ", pixels_.size(), ", got ", labels_.size());
  fields_ = {{"pixel", at::kLong, {}}, {"orientation", at::kByte, {}}, {"y", at::kLong, {}}};
}

void PixelDataset::get(const RowKey& key, const BatchView& out, int64_t at) const {
  const auto index = static_cast<size_t>(key.index);
  *out.row<int64_t>(0, at) = pixels_[index];
  *out.row<uint8_t>(1, at) = augment_ ? draw_orientation(key) : uint8_t{0};
  *out.row<int64_t>(2, at) = labels_[index];
}

}  // namespace trainkit
