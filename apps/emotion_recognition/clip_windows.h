#pragma once
/// Reads parts of clips as rows, for predictions per window.

#include <absl/status/statusor.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "emotion_recognition/clip_dataset.h"

namespace trainkit::emotion {

/// A part of a clip, in seconds from its start.
struct ClipWindow {
  int64_t clip = 0;
  double begin = 0, end = 0;
  /// Whether it is the whole clip, which is read as in training.
  bool is_whole = false;
};

/// Returns the duration of a clip in seconds: that of its video, or of its sound without one or for Modality::kAudio.
/// Errors: those of MediaFile.
absl::StatusOr<double> clip_seconds(const std::string& path, const MediaOptions& options = {},
                                    Modality modality = Modality::kBoth);

/// Divides a clip into windows of `seconds`. A remainder of less than half a window at the end is left out, unless it
/// is the whole clip.
std::vector<ClipWindow> windows_of(int64_t clip, double clip_seconds, double seconds);

/// Decodes window i as row i, with the fields of ClipDataset: the frames shown at times spread evenly over the window,
/// and its sound, cropped to the middle or padded. Both go by the time stamps of their streams: a clip starts with its
/// first frame (its first sample for Modality::kAudio); the part of a window without sound is silent. The label is 0.
/// The sound of the last clip is kept, so that its windows decode it once. Thread-safe. Errors: those of
/// ClipDataset::get.
class ClipWindowDataset final : public Dataset {
 public:
  ClipWindowDataset(std::shared_ptr<const ClipDataset> clips, std::vector<ClipWindow> windows)
      : clips_(std::move(clips)), windows_(std::move(windows)) {}

  int64_t size() const override { return static_cast<int64_t>(windows_.size()); }
  const std::vector<FieldSpec>& fields() const override { return clips_->fields(); }
  void get(const RowKey& key, const BatchView& out, int64_t at) const override;
  std::string describe(int64_t index) const override {
    return clips_->describe(windows_[static_cast<size_t>(index)].clip);
  }

 private:
  at::Tensor frames_of(const MediaFile& file, const ClipWindow& window) const;
  /// Sound (1, samples) of a window.
  at::Tensor sound_of(const MediaFile& file, const ClipWindow& window) const;
  /// Sound of the whole clip.
  AudioSamples whole_sound(const MediaFile& file, int64_t clip) const;

  std::shared_ptr<const ClipDataset> clips_;
  std::vector<ClipWindow> windows_;
  mutable std::mutex mutex_;
  mutable int64_t last_clip_ = -1;
  mutable AudioSamples last_sound_;
};

}  // namespace trainkit::emotion
