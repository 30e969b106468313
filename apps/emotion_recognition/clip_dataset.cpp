#include "emotion_recognition/clip_dataset.h"

#include <ATen/ops/zeros.h>
#include <absl/status/statusor.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace trainkit::emotion {

bool write_sound(const at::Tensor& sound, int64_t count, float* out) {
  const int64_t length = sound.size(1), taken = std::min(length, count);
  const float* from = sound.const_data_ptr<float>() + (length - taken) / 2;
  std::copy_n(from, taken, out);
  std::fill(out + taken, out + count, 0.0F);
  return std::any_of(out, out + count, [](float x) { return x != 0; });
}

ClipDataset::ClipDataset(ClipList list, const ClipDatasetOptions& options) : list_(std::move(list)), options_(options) {
  TORCH_CHECK_VALUE(options.frames >= 1 && options.image_size >= 1 && options.samples >= 1 && options.sample_rate >= 1,
                    "frames, image_size, samples and sample_rate must be >= 1");
  if (options.modality != Modality::kAudio)
    fields_.push_back({"frames", at::kByte, {options.frames, options.image_size, options.image_size, 3}});
  if (options.modality != Modality::kVisual) {
    fields_.push_back({"audio", at::kFloat, {options.samples}});
    fields_.push_back({"has_audio", at::kBool, {}});
  }
  fields_.push_back({"label", at::kLong, {}});
}

void ClipDataset::get(const RowKey& key, const BatchView& out, int64_t at) const {
  const Clip& clip = list_.clips[static_cast<size_t>(key.index)];
  const MediaFile file = MediaFile::open(clip.path, options_.media).value();
  size_t field = 0;
  if (options_.modality != Modality::kAudio) {
    const FrameBatch frames =
        file.spread_frames(options_.frames, {.height = options_.image_size, .width = options_.image_size}).value();
    row_tensor(out, field, fields_[field], at).copy_(frames.data.permute({0, 2, 3, 1}));
    ++field;
  }
  if (options_.modality != Modality::kVisual) {
    const bool needed = options_.modality == Modality::kAudio;
    at::Tensor sound = at::zeros({1, 0});
    if (file.audio() || needed) sound = file.samples({.sample_rate = options_.sample_rate}).value().data.contiguous();
    *out.row<bool>(field + 1, at) = write_sound(sound, options_.samples, out.row<float>(field, at));
    field += 2;
  }
  *out.row<int64_t>(field, at) = clip.label;
}

}  // namespace trainkit::emotion
