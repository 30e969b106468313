#include "emotion_recognition/initial_rows.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "app/program/initial_weights.h"
#include "emotion_recognition/predict.h"
#include "trainkit/core/status.h"

namespace trainkit::emotion {

absl::Status adapt_rows(const RunWeights& from, const std::vector<std::string>& labels, const EmotionOptions& options,
                        LoadWeightsOptions& load, RunFacts& facts) {
  if (options.plan_data > 0) return absl::OkStatus();
  // Fusions have the same shapes.
  const auto fusion = trainkit::detail::setting_beside(from, "fusion_type");
  if (options.modality == "both" && fusion && *fusion != options.model.fusion) {
    return trainkit::detail::other_meaning(from.file, "fusion_type", "another fusion than in this run", *fusion,
                                           options.model.fusion, "--fusion_type " + *fusion);
  }
  const std::pair<const char*, std::string> reading[] = {{"frames", std::to_string(options.clips.frames)},
                                                         {"image_size", std::to_string(options.clips.image_size)},
                                                         {"audio_seconds", fmt::format("{}", options.audio_seconds)}};
  for (const auto& [name, own] : reading) {
    const auto saved = trainkit::detail::setting_beside(from, name);
    if (saved && *saved != own) {
      facts.emplace_back("warning:", fmt::format("the weights of {} were trained with --{} {}, this run has {}",
                                                 from.file, name, *saved, own));
    }
  }
  const std::string path = trainkit::detail::file_beside(from, kLabelsFile);
  if (path.empty()) {
    facts.emplace_back("warning:", fmt::format("no {} next to {}: row i of its classifier is taken for label i of {}",
                                               kLabelsFile, from.file, fmt::join(labels, ", ")));
    return absl::OkStatus();
  }
  trainkit::detail::RowNames rows{.kind = "labels", .here = labels};
  TRAINKIT_ASSIGN_OR_RETURN(rows.in_file, load_labels(path));
  if (rows.known() == 0) {
    return trainkit::detail::other_meaning(
        path, "", "has none of these labels", fmt::format("{}", fmt::join(rows.in_file, ", ")),
        fmt::format("{}", fmt::join(labels, ", ")), "rename the labels in the tables, or start without --init_from");
  }
  facts.emplace_back("start", fmt::format("weights of {}: {} by the names in {}; new rows start as in a new model",
                                          from.file, rows.describe(), path));
  load.adapt = [rows, path](NamedTensors& file, const NamedTensors& model) {
    return trainkit::detail::take_rows(file, model, rows, {"fusion.classifier.weight", "fusion.classifier.bias"}, path);
  };
  return absl::OkStatus();
}

}  // namespace trainkit::emotion
