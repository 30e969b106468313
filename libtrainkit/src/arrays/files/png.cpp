#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <png.h>

#include <csetjmp>
#include <functional>
#include <new>
#include <string>
#include <utility>

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

namespace {

/// Compresses an image row by row into a file or a text.
class PngWriter {
 public:
  using Append = std::function<absl::Status(const void* bytes, size_t size)>;

  PngWriter(Append append, int64_t height, int64_t width) : append_(std::move(append)) {
    png_ = png_create_write_struct(PNG_LIBPNG_VER_STRING, this, fail, [](png_structp, png_const_charp) {});
    info_ = png_ ? png_create_info_struct(png_) : nullptr;
    if (info_ == nullptr) throw std::bad_alloc();
    png_set_write_fn(png_, this, put, [](png_structp) {});
    call([&] {
      png_set_IHDR(png_, info_, static_cast<png_uint_32>(width), static_cast<png_uint_32>(height), 8,
                   PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_BASE, PNG_FILTER_TYPE_BASE);
      png_set_sRGB(png_, info_, PNG_sRGB_INTENT_PERCEPTUAL);
      png_write_info(png_, info_);
    });
  }
  ~PngWriter() { png_destroy_write_struct(&png_, &info_); }
  PngWriter(const PngWriter&) = delete;
  PngWriter& operator=(const PngWriter&) = delete;

  absl::Status append(const at::Tensor& rows) {
    const at::Tensor data = rows.contiguous();
    for (int64_t row = 0; row < data.size(0) && status_.ok(); ++row) {
      call([&] { png_write_row(png_, data.const_data_ptr<uint8_t>() + row * data.stride(0)); });
    }
    return status_;
  }
  absl::Status finish() {
    if (status_.ok()) call([&] { png_write_end(png_, info_); });
    return status_;
  }

 private:
  /// libpng leaves its functions with longjmp; no object with a destructor may live between it and setjmp.
  template <class Call>
  void call(const Call& call) {
    if (setjmp(png_jmpbuf(png_)) == 0) call();
  }
  static void fail(png_structp png, png_const_charp why) {
    auto& status = static_cast<PngWriter*>(png_get_error_ptr(png))->status_;
    if (status.ok()) status = absl::InternalError(std::string("libpng: ") + why);
    png_longjmp(png, 1);
  }
  static void put(png_structp png, png_bytep bytes, size_t size) {
    auto* const self = static_cast<PngWriter*>(png_get_io_ptr(png));
    if (self->status_.ok()) self->status_ = self->append_(bytes, size);
  }

  Append append_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  absl::Status status_;
};

void check_sides(int64_t height, int64_t width) {
  for (const int64_t size : {height, width}) {
    TORCH_CHECK_VALUE(size >= 1 && size <= kMostPngSide, "sides are 1 to ", kMostPngSide, " pixels, got ", height,
                      " x ", width);
  }
}

}  // namespace

absl::StatusOr<std::string> encode_png(const at::Tensor& image) {
  TORCH_CHECK_VALUE(image.dim() == 3 && image.size(2) == 3 && image.scalar_type() == at::kByte,
                    "an image is (height, width, 3) uint8, got ", image.sizes(), " ", image.scalar_type());
  check_sides(image.size(0), image.size(1));
  std::string bytes;
  const auto append = [&](const void* from, size_t size) {
    bytes.append(static_cast<const char*>(from), size);
    return absl::OkStatus();
  };
  PngWriter png(append, image.size(0), image.size(1));
  TRAINKIT_RETURN_IF_ERROR(png.append(image.cpu()));
  TRAINKIT_RETURN_IF_ERROR(png.finish());
  return bytes;
}

absl::Status write_png(const std::string& path, const at::Tensor& image) {
  TORCH_CHECK_VALUE(image.dim() == 3, "an image is (height, width, 3) uint8, got ", image.sizes());
  return write_png(path, image.size(0), image.size(1),
                   [&](const AppendElements& append) { return append(image.cpu()); });
}

absl::Status write_png(const std::string& path, int64_t height, int64_t width, const WriteElements& write) {
  check_sides(height, width);
  const auto [folder, name] = split_path(path);
  TRAINKIT_ASSIGN_OR_RETURN(const Directory directory, Fs::posix().open_directory(folder));
  return write_file_atomically(directory, name, [&](WritableFile& file) -> absl::Status {
    PngWriter png([&](const void* bytes, size_t size) { return file.append(bytes, size); }, height, width);
    int64_t left = height;
    TRAINKIT_RETURN_IF_ERROR(write([&](const at::Tensor& rows) {
      TORCH_CHECK_VALUE(
          rows.dim() == 3 && rows.size(1) == width && rows.size(2) == 3 && rows.scalar_type() == at::kByte,
          "an image is (height, width, 3) uint8, got ", rows.sizes(), " ", rows.scalar_type());
      left -= rows.size(0);
      TORCH_CHECK_VALUE(left >= 0, "an image of ", height, " rows got more");
      return png.append(rows);
    }));
    TORCH_CHECK_VALUE(left == 0, "an image of ", height, " rows lacks ", left);
    return png.finish();
  });
}

}  // namespace trainkit
