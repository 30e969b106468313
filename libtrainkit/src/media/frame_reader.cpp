// Converts decoded frames to RGB at the requested size.
#include <ATen/Functions.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/base/round_up.h"
#include "media/media_source.h"
#include "media/video_decoder.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

constexpr int64_t kPadding = 64;  // swscale may write past the end of a row

/// Scales and converts pictures with swscale's bilinear filter, as torchcodec does.
class FrameConverter {
 public:
  FrameConverter(const MediaSource& source, const FrameOptions& options)
      : source_(source), options_(options), orientation_(orientation_of(source.video->display_matrix)) {}

  /// Writes the upright picture to slot `slot` of `out`, (slots, height, width, 3). The first call allocates `out`.
  absl::Status convert(const AVFrame& frame, int64_t slots, int64_t slot, at::Tensor& out) {
    const bool turned = orientation_.transposed;
    int64_t height = turned ? options_.width : options_.height, width = turned ? options_.height : options_.width;
    if (height == 0) {
      height = frame.height;
      width = frame.width;
    }
    const std::array<int64_t, 4> shape{slots, turned ? width : height, turned ? height : width, 3};
    if (!out.defined()) out = at::empty(shape, at::kByte);
    if (out.sizes() != at::IntArrayRef(shape)) {
      return source_.error("pictures change their size", fmt::format("{} x {}", width, height),
                           fmt::format("{} x {}, as the first", out.size(2), out.size(1)));
    }
    TRAINKIT_RETURN_IF_ERROR(scale(frame, static_cast<int>(width), static_cast<int>(height)));
    place(width, height, out.mutable_data_ptr<uint8_t>() + slot * shape[1] * shape[2] * 3);
    return absl::OkStatus();
  }

 private:
  absl::Status scale(const AVFrame& frame, int width, int height) {
    const auto format = static_cast<AVPixelFormat>(frame.format);
    scaler_.reset(sws_getCachedContext(scaler_.release(), frame.width, frame.height, format, width, height,
                                       AV_PIX_FMT_RGB24, SWS_BILINEAR, nullptr, nullptr, nullptr));
    if (!scaler_) return source_.error("pictures cannot be converted", std::to_string(frame.format));
    int *from = nullptr, *to = nullptr, from_full = 0, to_full = 0, brightness = 0, contrast = 0, saturation = 0;
    sws_getColorspaceDetails(scaler_.get(), &from, &from_full, &to, &to_full, &brightness, &contrast, &saturation);
    const int* matrix = sws_getCoefficients(frame.colorspace);
    if (frame.color_range == AVCOL_RANGE_JPEG) from_full = 1;
    if (frame.color_range == AVCOL_RANGE_MPEG) from_full = 0;
    sws_setColorspaceDetails(scaler_.get(), matrix, from_full, matrix, to_full, brightness, contrast, saturation);
    stride_ = round_up(int64_t{width} * 3, kPadding) + kPadding;
    scaled_.resize(static_cast<size_t>(stride_ * height + kPadding));
    uint8_t* const rows[4] = {scaled_.data(), nullptr, nullptr, nullptr};
    const int strides[4] = {static_cast<int>(stride_), 0, 0, 0};
    if (sws_scale(scaler_.get(), frame.data, frame.linesize, 0, frame.height, rows, strides) != height) {
      return source_.error("pictures cannot be scaled");
    }
    return absl::OkStatus();
  }

  /// Copies the scaled picture to `out`, rotated and flipped to be upright.
  void place(int64_t width, int64_t height, uint8_t* out) const {
    const uint8_t* rows = scaled_.data();
    const auto [transposed, flip_x, flip_y] = orientation_;
    if (!transposed && !flip_x) {
      for (int64_t y = 0; y < height; ++y) {
        std::memcpy(out + y * width * 3, rows + (flip_y ? height - 1 - y : y) * stride_,
                    static_cast<size_t>(width * 3));
      }
      return;
    }
    const int64_t out_height = transposed ? width : height, out_width = transposed ? height : width;
    for (int64_t y = 0; y < out_height; ++y) {
      for (int64_t x = 0; x < out_width; ++x, out += 3) {
        const int64_t from_x = transposed ? y : x, from_y = transposed ? x : y;
        std::memcpy(
            out, rows + (flip_y ? height - 1 - from_y : from_y) * stride_ + (flip_x ? width - 1 - from_x : from_x) * 3,
            3);
      }
    }
  }

  const MediaSource& source_;
  FrameOptions options_;
  Orientation orientation_;
  FfmpegPtr<SwsContext> scaler_;
  std::vector<uint8_t> scaled_;
  int64_t stride_ = 0;
};

}  // namespace

absl::StatusOr<FrameBatch> read_frames(const MediaSource& source, std::span<const int64_t> indices,
                                       const FrameOptions& options) {
  std::vector<int64_t> wanted(indices.begin(), indices.end());
  std::sort(wanted.begin(), wanted.end());
  wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
  FrameConverter converter(source, options);
  const int64_t count = std::ssize(indices);
  at::Tensor pictures;
  const auto convert = [&](const AVFrame& frame, int64_t index) {
    const auto first = std::find(indices.begin(), indices.end(), index) - indices.begin();
    return converter.convert(frame, count, first, pictures);
  };
  TRAINKIT_RETURN_IF_ERROR(decode_frames(source, wanted, convert).status());
  FrameBatch batch;
  if (count == 0) pictures = at::empty({0, options.height, options.width, 3}, at::kByte);
  batch.pts_seconds = at::empty({count}, at::kDouble);
  batch.duration_seconds = at::empty({count}, at::kDouble);
  const double unit = av_q2d(source.video->time_base);
  const int64_t picture_bytes = count ? pictures.numel() / count : 0;
  auto* bytes = pictures.mutable_data_ptr<uint8_t>();
  for (int64_t i = 0; i < count; ++i) {
    const auto first = std::find(indices.begin(), indices.end(), indices[i]) - indices.begin();
    if (first < i) std::memcpy(bytes + i * picture_bytes, bytes + first * picture_bytes, picture_bytes);
    const FrameEntry& frame = source.frames[indices[i]];
    batch.pts_seconds.mutable_data_ptr<double>()[i] = static_cast<double>(frame.pts) * unit;
    batch.duration_seconds.mutable_data_ptr<double>()[i] = static_cast<double>(frame.duration) * unit;
  }
  batch.data = pictures.permute({0, 3, 1, 2});
  return batch;
}

}  // namespace trainkit::detail
