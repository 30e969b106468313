#include <c10/util/Exception.h>
#include <png.h>

#include <cstring>
#include <vector>

#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/io/array_file.h"

namespace trainkit {

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
