#include "emotion_recognition/initial_rows.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "emotion_recognition/predict.h"
#include "trainkit/app/initial_weights.h"
#include "trainkit/core/status.h"

namespace trainkit::emotion {

absl::Status adapt_rows(const RunWeights& from, const std::vector<std::string>& labels, const EmotionOptions& options,
                        LoadWeightsOptions& load, RunFacts& facts) {
  if (options.plan_data > 0) return absl::OkStatus();
  if (options.modality == "both") {  // fusions have the same shapes
    TRAINKIT_RETURN_IF_ERROR(check_setting(from, "fusion_type", options.model.fusion, "fusion"));
  }
  const std::pair<const char*, std::string> reading[] = {{"frames", std::to_string(options.clips.frames)},
                                                         {"image_size", std::to_string(options.clips.image_size)},
                                                         {"audio_seconds", fmt::format("{}", options.audio_seconds)}};
  for (const auto& [name, own] : reading) {
    const auto saved = setting_beside(from, name);
    if (saved && *saved != own) {
      facts.emplace_back("warning:", fmt::format("the weights of {} were trained with --{} {}, this run has {}",
                                                 from.file, name, *saved, own));
    }
  }
  const std::string path = file_beside(from, kLabelsFile);
  if (path.empty()) {
    facts.emplace_back("warning:", fmt::format("no {} next to {}: row i of its classifier is taken for label i of {}",
                                               kLabelsFile, from.file, fmt::join(labels, ", ")));
    return absl::OkStatus();
  }
  TRAINKIT_ASSIGN_OR_RETURN(const auto saved, load_labels(path));
  const std::vector<std::string> tensors = {"fusion.classifier.weight", "fusion.classifier.bias"};
  return take_rows(from, path, {{"labels", saved, labels, tensors}}, load, facts,
                   "rename the labels in the tables, or start without --init_from");
}

}  // namespace trainkit::emotion
