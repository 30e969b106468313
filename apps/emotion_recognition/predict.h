#pragma once
/// `trainkit-emotion predict`: recognises emotions in clips with a trained run.

#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "emotion_recognition/options.h"
#include "trainkit/app/app.h"

namespace trainkit::emotion {

/// Name of the labels' file in a run's folder: a JSON list of the labels, in the order of the model's classes.
inline constexpr char kLabelsFile[] = "labels.json";

absl::Status save_labels(const std::string& path, const std::vector<std::string>& labels);
/// Reads a file of save_labels. Errors: weights.labels (exit code 5); those of MappedFile.
absl::StatusOr<std::vector<std::string>> load_labels(const std::string& path);
/// Reads the labels of a trained run. Errors: exit code 5.
absl::StatusOr<std::vector<std::string>> read_labels(const TrainedRun& run, const EmotionOptions& options);

/// Returns the clips that the words of a command name: files, and the media files in folders, sorted by name. A word
/// without a file is kept, since it is listed as unreadable. `notes` gets a line for each folder with entries that are
/// left out. data.empty (exit code 4) for a folder without clips.
absl::StatusOr<std::vector<std::string>> find_clips(const std::vector<std::string>& words,
                                                    std::vector<std::string>& notes);

/// Returns the command. `options` are those that app.add_flags binds.
AppCommand predict_command(App& app, const EmotionOptions& options);

}  // namespace trainkit::emotion
