#pragma once
/// Reads clips as rows of frames and sound.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "emotion_recognition/clips.h"
#include "emotion_recognition/model.h"
#include "trainkit/data/dataset.h"
#include "trainkit/media/media.h"

namespace trainkit::emotion {

struct ClipDatasetOptions {
  Modality modality = Modality::kBoth;
  /// Number of frames per clip, spread evenly over it.
  int64_t frames = 8;
  /// Height and width of a frame in pixels.
  int64_t image_size = 224;
  /// Samples per second.
  int64_t sample_rate = 16'000;
  /// Samples per row. A longer clip is cropped to its middle; a shorter one is padded with silence.
  int64_t samples = int64_t{5} * 16'000;
  MediaOptions media = {};
};

/// How the channels of sound are mixed, for caches and checkpoints. Earlier versions used FFmpeg's matrix, which gives
/// clips of several channels another amplitude.
inline constexpr char kSoundMix[] = "mean of the channels";

/// Decodes clip i of a list as row i, each time it is read. Fields, in this order, without those of an unused modality:
///
///   frames     (N, H, W, 3) uint8, red, green, blue
///   audio      (samples) float32, -1 to 1
///   has_audio  () bool: whether any sample is not 0
///   label      () int64
///
/// get() throws absl::BadStatusOrAccess with the Status of MediaFile for an unreadable clip, for a clip without video
/// if the modality needs it, and for a clip without sound if the modality is kAudio. With kBoth a clip without sound
/// has zeros. Thread-safe.
class ClipDataset final : public Dataset {
 public:
  /// Throws c10::ValueError for sizes below 1.
  ClipDataset(ClipList list, const ClipDatasetOptions& options);

  int64_t size() const override { return list_.size(); }
  const std::vector<FieldSpec>& fields() const override { return fields_; }
  void get(const RowKey& key, const BatchView& out, int64_t at) const override;
  std::string describe(int64_t index) const override { return list_.clips[static_cast<size_t>(index)].path; }

  const ClipList& list() const { return list_; }
  const ClipDatasetOptions& options() const { return options_; }

 private:
  ClipList list_;
  ClipDatasetOptions options_;
  std::vector<FieldSpec> fields_;
};

/// Writes `count` samples to `out`: the middle of a longer `sound` (1, samples), or a shorter one padded with zeros at
/// the end. Returns whether any of them is not 0.
bool write_sound(const at::Tensor& sound, int64_t count, float* out);

}  // namespace trainkit::emotion
