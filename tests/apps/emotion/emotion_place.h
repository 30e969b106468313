#pragma once
/// The demonstration clips, and the flags of a short run of trainkit-emotion with them.

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "apps/demo_data.h"
#include "apps/runs.h"
#include "test_util.h"

namespace trainkit::test {

inline Ended run_emotion(const TempDir& dir, const std::vector<std::string>& flags) {
  return run_to_end("trainkit-emotion", flags, dir.path().string());
}

inline nlohmann::json json_of(const std::string& path) { return nlohmann::json::parse(read_text(path)); }

struct EmotionPlace {
  EmotionPlace() { copy_demo_data("trainkit-emotion", data); }
  /// A short training run with small frames or audio only, without a memory plan unless `more` asks for one or for
  /// `--batch_size auto`. Flags in `more` replace those here.
  std::vector<std::string> flags(const std::string& name, const std::vector<std::string>& more,
                                 bool sound = false) const {
    const std::vector<std::pair<std::string, std::string>> mine = {
        {"--data_dir", data},   {"--output_dir", dir / name}, {"--model_size", "simple"}, {"--frames", "2"},
        {"--image_size", "32"}, {"--audio_seconds", "1"},     {"--timeout", "60"},        {"--epochs", "1"},
        {"--batch_size", "16"}};
    std::vector<std::string> all = {"--no-use_tensorboard"};
    const auto is_given = [&](const char* flag) { return std::find(more.begin(), more.end(), flag) != more.end(); };
    if (!is_given("--plan_memory") && !is_given("auto")) all.push_back("--no-plan_memory");
    if (sound) all.insert(all.end(), {"--modality", "audio"});
    const bool hears_only = sound || is_given("audio");
    for (const auto& [flag, value] : mine) {
      if (hears_only && (flag == "--frames" || flag == "--image_size")) continue;
      if (!is_given(flag.c_str())) all.insert(all.end(), {flag, value});
    }
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  TempDir dir;
  std::string data = dir / "demo";
};

/// Number of clips in the confusion matrix of a run.
inline int64_t scored_clips(const std::string& folder) {
  const nlohmann::json scores = json_of(folder + "/results/scores.json");
  int64_t clips = 0;
  for (const auto& row : scores.at("confusion")) {
    for (const auto& count : row) clips += count.get<int64_t>();
  }
  return clips;
}

}  // namespace trainkit::test
