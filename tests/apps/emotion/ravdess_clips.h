#pragma once
/// Clips with RAVDESS's voices and unrelated faces, in MELD's layout.

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "apps/emotion/emotion_place.h"
#include "trainkit/core/random.h"
#include "trainkit/media/media.h"

namespace trainkit::test {

/// A recording: 03-01-EMOTION-INTENSITY-STATEMENT-REPETITION-ACTOR.flac.
struct Recording {
  std::string path;
  std::string emotion;
  int64_t actor = 0;
};

inline std::vector<Recording> ravdess_recordings() {
  const char* const emotions[] = {"neutral", "calm", "happy", "sad", "angry", "fearful", "disgust", "surprised"};
  std::vector<Recording> list;
  for (const auto& entry : std::filesystem::directory_iterator(data_dir() + "/ravdess_audio")) {
    if (entry.path().extension() != ".flac") continue;
    const std::string name = entry.path().stem().string();
    list.push_back({entry.path().string(), emotions[std::stoi(name.substr(6, 2)) - 1], std::stoi(name.substr(18, 2))});
  }
  std::sort(list.begin(), list.end(), [](const Recording& a, const Recording& b) { return a.path < b.path; });
  return list;
}

/// Writes a folder for `trainkit-emotion --dataset csv`: `<stem>.mp4` for each recording, with its audio and randomly
/// selected frames of a face of media/faces, independent of the recording's emotion and actor.
class RavdessClips {
 public:
  explicit RavdessClips(const std::string& folder, int64_t side = 64) : folder_(folder), list_(ravdess_recordings()) {
    std::vector<at::Tensor> faces;
    std::vector<std::string> paths;
    for (const auto& entry : std::filesystem::directory_iterator(data_dir() + "/media/faces")) {
      paths.push_back(entry.path().string());
    }
    std::sort(paths.begin(), paths.end());
    for (const std::string& path : paths) {
      const MediaFile file = MediaFile::open(path).value();
      faces.push_back(file.spread_frames(kFaceFrames, {.height = side, .width = side}).value().data);
    }
    std::filesystem::create_directories(folder);
    for (size_t i = 0; i < list_.size(); ++i) {
      const at::Tensor sound = MediaFile::open(list_[i].path).value().samples().value().data;
      const double seconds = static_cast<double>(sound.size(1)) / 16'000;
      const uint64_t drawn = hash_key(2026, 0, i);
      const at::Tensor& face = faces[drawn % faces.size()];
      const auto first = static_cast<int64_t>(drawn / faces.size() % (kFaceFrames - kFrames));
      const absl::Status written = write_media(
          clip(list_[i]), face.narrow(0, first, kFrames), sound,
          {.frame_rate = static_cast<double>(kFrames) / seconds, .sample_rate = 16'000, .preset = "ultrafast"});
      if (!written.ok()) throw std::runtime_error(std::string(written.message()));
    }
  }

  const std::vector<Recording>& recordings() const { return list_; }

  /// Writes a table of the clips of `actors`: columns "file" and "emotion".
  std::string table(const std::string& name, const std::vector<int64_t>& actors) const {
    const std::string path = folder_ + "/" + name + ".csv";
    std::ofstream file(path);
    file << "file,emotion\n";
    for (const Recording& recording : list_) {
      if (std::find(actors.begin(), actors.end(), recording.actor) == actors.end()) continue;
      file << std::filesystem::path(clip(recording)).filename().string() << "," << recording.emotion << "\n";
    }
    return path;
  }

  std::string clip(const Recording& recording) const {
    return folder_ + "/" + std::filesystem::path(recording.path).stem().string() + ".mp4";
  }

 private:
  static constexpr int64_t kFaceFrames = 24, kFrames = 8;
  std::string folder_;
  std::vector<Recording> list_;
};

/// Returns summary.json of a trainkit-emotion run with tables of such clips: train, validation, test.
inline nlohmann::json train_on_clips(const TempDir& dir, const std::string& name, const std::string& clips,
                                     const std::vector<std::string>& tables, const std::vector<std::string>& more) {
  std::vector<std::string> flags = {
      "--dataset",      "csv",     "--clip_dir",   clips,     "--path_column",       "file",
      "--label_column", "emotion", "--model_size", "simple",  "--train_csv",         tables[0],
      "--val_csv",      tables[1], "--test_csv",   tables[2], "--output_dir",        dir / name,
      "--device",       "cpu",     "--save_every", "0",       "--no-use_tensorboard"};
  flags.insert(flags.end(), more.begin(), more.end());
  const Ended ended = run_emotion(dir, flags);
  if (ended.code != 0) throw std::runtime_error(ended.errors + ended.output);
  return json_of(dir / name + "/summary.json");
}

}  // namespace trainkit::test
