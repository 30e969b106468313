#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <png.h>

#include <string>

#include "trainkit/arrays/array_file.h"
#include "trainkit/core/data_error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/io/mapped_file.h"

namespace trainkit {

absl::StatusOr<at::Tensor> read_png(const std::string& path) {
  constexpr int64_t kMostPixels = int64_t{1} << 28, kChannels = 4;
  constexpr int64_t kMostCompressed =
      int64_t{8} * 1032;  // pixels in a byte: one bit each, and deflate's largest factor
  TRAINKIT_ASSIGN_OR_RETURN(const auto file, MappedFile::open(path));
  png_image png = {};
  png.version = PNG_IMAGE_VERSION;
  const auto bad = [&](const std::string& problem, const std::string& got = "", const std::string& expected = "") {
    png_image_free(&png);
    return data_error("data.png", {.file = path}, problem, got, expected);
  };
  if (!png_image_begin_read_from_memory(&png, file->bytes().data(), file->bytes().size())) return bad(png.message);
  const int64_t height = png.height, width = png.width;
  if (height * width > kMostPixels) {
    return bad("too many pixels", std::to_string(height) + " x " + std::to_string(width),
               "at most " + std::to_string(kMostPixels));
  }
  if (height * width / kMostCompressed > static_cast<int64_t>(file->bytes().size())) {
    return bad("more pixels than the file can hold", std::to_string(height) + " x " + std::to_string(width));
  }
  // With an alpha channel libpng would mix transparent pixels with a background.
  png.format = PNG_FORMAT_RGBA;
  png.flags |= PNG_IMAGE_FLAG_16BIT_sRGB;  // 16 bits without a gamma are not linear
  at::Tensor pixels = at::empty({height, width, kChannels}, at::kByte);
  if (!png_image_finish_read(&png, nullptr, pixels.mutable_data_ptr<uint8_t>(), 0, nullptr)) return bad(png.message);
  TRAINKIT_RETURN_IF_ERROR(file->check());
  return pixels.slice(2, 0, 3).contiguous();
}

absl::Status write_png(const std::string& path, const at::Tensor& image) {
  TORCH_CHECK_VALUE(image.dim() == 3 && image.size(2) == 3 && image.scalar_type() == at::kByte,
                    "an image is (height, width, 3) uint8, got ", image.sizes(), " ", image.scalar_type());
  for (int64_t d = 0; d < 2; ++d) {
    TORCH_CHECK_VALUE(image.size(d) >= 1 && image.size(d) <= 65'535, "sides are 1 to 65535 pixels, got ",
                      image.sizes());
  }
  const at::Tensor pixels = image.cpu().contiguous();
  png_image png = {};
  png.version = PNG_IMAGE_VERSION;
  png.height = static_cast<png_uint_32>(image.size(0));
  png.width = static_cast<png_uint_32>(image.size(1));
  png.format = PNG_FORMAT_RGB;
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(png);
  std::string bytes(size, '\0');
  const bool written =
      png_image_write_to_memory(&png, bytes.data(), &size, 0, pixels.const_data_ptr<uint8_t>(), 0, nullptr);
  const std::string why = png.message;
  png_image_free(&png);
  if (!written) return absl::InternalError(path + ": libpng: " + why);
  bytes.resize(size);
  return write_file_atomically(Fs::posix(), path, bytes);
}

}  // namespace trainkit
