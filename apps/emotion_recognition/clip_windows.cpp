#include "emotion_recognition/clip_windows.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "trainkit/core/status.h"

namespace trainkit::emotion {

absl::StatusOr<double> clip_seconds(const std::string& path, const MediaOptions& options, Modality modality) {
  TRAINKIT_ASSIGN_OR_RETURN(const MediaFile file, MediaFile::open(path, options));
  if (file.video() && modality != Modality::kAudio) {
    return file.video()->end_stream_seconds - file.video()->begin_stream_seconds;
  }
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
  windows.front().is_whole = windows.front().end == clip_seconds;
  return windows;
}

at::Tensor ClipWindowDataset::frames_of(const MediaFile& file, const ClipWindow& window) const {
  const ClipDatasetOptions& options = clips_->options();
  const double start = file.video() ? file.video()->begin_stream_seconds : 0;  // without video frames_played_at fails
  const double step = (window.end - window.begin) / static_cast<double>(options.frames);
  std::vector<double> times;
  for (int64_t i = 0; i < options.frames; ++i) {
    times.push_back(start + window.begin + (static_cast<double>(i) + 0.5) * step);
  }
  return file.frames_played_at(times, {.height = options.image_size, .width = options.image_size}).value().data;
}

AudioSamples ClipWindowDataset::whole_sound(const MediaFile& file, int64_t clip) const {
  const std::lock_guard lock(mutex_);
  if (last_clip_ != clip) {
    last_sound_ = file.samples({.sample_rate = clips_->options().sample_rate}).value();
    last_clip_ = clip;
  }
  return last_sound_;
}

at::Tensor ClipWindowDataset::sound_of(const MediaFile& file, const ClipWindow& window) const {
  const AudioSamples whole = whole_sound(file, window.clip);
  const bool by_picture = file.video() && clips_->options().modality != Modality::kAudio;
  const double start = by_picture ? file.video()->begin_stream_seconds : whole.pts_seconds;
  const auto at_sample = [&](double seconds) -> int64_t {
    return std::llround((start + seconds - whole.pts_seconds) * static_cast<double>(whole.sample_rate));
  };
  const int64_t begin = at_sample(window.begin), end = at_sample(window.end), length = whole.data.size(1);
  at::Tensor sound = at::zeros({1, end - begin});
  const int64_t first = std::clamp<int64_t>(begin, 0, length), last = std::clamp<int64_t>(end, first, length);
  if (first < last) sound.narrow(1, first - begin, last - first).copy_(whole.data.narrow(1, first, last - first));
  return sound;
}

void ClipWindowDataset::get(const RowKey& key, const BatchView& out, int64_t at) const {
  const ClipWindow& window = windows_[static_cast<size_t>(key.index)];
  if (window.is_whole) {
    RowKey whole = key;
    whole.index = window.clip;
    clips_->get(whole, out, at);
    return;
  }
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
    if (file.audio() || options.modality == Modality::kAudio) sound = sound_of(file, window);
    *out.row<bool>(field + 1, at) = write_sound(sound, options.samples, out.row<float>(field, at));
    field += 2;
  }
  *out.row<int64_t>(field, at) = 0;
}

}  // namespace trainkit::emotion
