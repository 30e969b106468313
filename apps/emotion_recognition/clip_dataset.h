#pragma once
/// Clips as rows: frames as bytes and sound as samples, decoded when they are asked for.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "emotion_recognition/clips.h"
#include "emotion_recognition/model.h"
#include "trainkit/data/dataset.h"
#include "trainkit/io/media.h"

namespace trainkit::emotion {

struct ClipDatasetOptions {
  Modality modality = Modality::kBoth;
  /// Frames spread over a clip, and their height and width in pixels.
  int64_t frames = 8;
  int64_t image_size = 224;
  /// Samples of sound of each row: the middle of a clip that is longer, silence after one that is shorter.
  int64_t sample_rate = 16'000;
  int64_t samples = 5 * 16'000;
  MediaOptions media = {};
};

/// Row i is clip i of a list. Fields, in this order; those of a modality that is left out are missing:
///
///   frames     (N, H, W, 3) uint8, red, green, blue
///   audio      (samples) float32, -1 to 1
///   has_audio  () bool: whether there is any sound, which a track of zeros has not
///   label      () int64
///
/// What MediaFile refuses throws its Status as absl::BadStatusOrAccess: the row is bad. So is one without the video
/// that is asked for; without sound it is judged by its frames, unless the model has nothing else. Any number of
/// threads.
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

}  // namespace trainkit::emotion
