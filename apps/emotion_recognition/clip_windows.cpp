#include "emotion_recognition/clip_windows.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "trainkit/core/status.h"

namespace trainkit::emotion {

absl::StatusOr<double> clip_seconds(const std::string& path, const MediaOptions& options) {
  TRAINKIT_ASSIGN_OR_RETURN(const MediaFile file, MediaFile::open(path, options));
  if (file.video()) return file.video()->end_stream_seconds - file.video()->begin_stream_seconds;
  TRAINKIT_ASSIGN_OR_RETURN(const AudioSamples sound, file.samples());
  return sound.duration_seconds;
}

std::vector<ClipWindow> windows_of(int64_t clip, double clip_seconds, double seconds) {
  std::vector<ClipWindow> windows;
  const auto count = std::max<int64_t>(1, std::llround(clip_seconds / seconds));
  for (int64_t i = 0; i < count; ++i) {
    const double begin = static_cast<double>(i) * seconds;
    windows.push_back({clip, begin, std::min(begin + seconds, clip_seconds)});
  }
  return windows;
}

at::Tensor ClipWindowDataset::frames_of(const MediaFile& file, const ClipWindow& window) const {
  const ClipDatasetOptions& options = clips_->options();
  const FrameOptions size{.height = options.image_size, .width = options.image_size};
  if (!file.video()) return file.spread_frames(options.frames, size).value().data;  // the error of a clip without video
  const VideoStreamMetadata& video = *file.video();
  const double rate = static_cast<double>(video.num_frames) / (video.end_stream_seconds - video.begin_stream_seconds);
  const double step = (window.end - window.begin) / static_cast<double>(options.frames);
  std::vector<int64_t> chosen;
  for (int64_t i = 0; i < options.frames; ++i) {
    const double time = window.begin + (static_cast<double>(i) + 0.5) * step;
    chosen.push_back(std::clamp<int64_t>(static_cast<int64_t>(time * rate), 0, video.num_frames - 1));
  }
  return file.frames_at(chosen, size).value().data;
}

at::Tensor ClipWindowDataset::sound_of(const MediaFile& file, int64_t clip) const {
  const std::lock_guard lock(mutex_);
  if (last_clip_ != clip) {
    last_sound_ = file.samples({.sample_rate = clips_->options().sample_rate}).value().data.contiguous();
    last_clip_ = clip;
  }
  return last_sound_;
}

void ClipWindowDataset::get(const RowKey& key, const BatchView& out, int64_t at) const {
  const ClipWindow& window = windows_[static_cast<size_t>(key.index)];
  const ClipDatasetOptions& options = clips_->options();
  const MediaFile file =
      MediaFile::open(clips_->list().clips[static_cast<size_t>(window.clip)].path, options.media).value();
  size_t field = 0;
  if (options.modality != Modality::kAudio) {
    row_tensor(out, field, fields()[field], at).copy_(frames_of(file, window).permute({0, 2, 3, 1}));
    ++field;
  }
  if (options.modality != Modality::kVisual) {
    at::Tensor sound = at::zeros({1, 0});
    if (file.audio() || options.modality == Modality::kAudio) {
      const at::Tensor whole = sound_of(file, window.clip);
      const auto rate = static_cast<double>(options.sample_rate);
      const int64_t begin = std::min(std::llround(window.begin * rate), static_cast<long long>(whole.size(1)));
      const int64_t end = std::min(std::llround(window.end * rate), static_cast<long long>(whole.size(1)));
      sound = whole.narrow(1, begin, end - begin).contiguous();
    }
    *out.row<bool>(field + 1, at) = write_sound(sound, options.samples, out.row<float>(field, at));
    field += 2;
  }
  *out.row<int64_t>(field, at) = 0;
}

}  // namespace trainkit::emotion
