#include "emotion_recognition/predict.h"

#include <ATen/ops/softmax.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>

#include "emotion_recognition/clip_windows.h"
#include "emotion_recognition/session.h"
#include "trainkit/app/placement.h"
#include "trainkit/app/stored_values.h"
#include "trainkit/core/data_error.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/io/folder_files.h"
#include "trainkit/io/table.h"
#include "trainkit/train/checkpoint.h"

namespace trainkit::emotion {
namespace {

namespace fs = std::filesystem;

/// Own flags of the command.
struct PredictOptions {
  std::string out = {};
  double window = 0;
};

/// A row of the table: a clip or a window of it.
struct PredictedRow {
  ClipWindow window;
  /// Probability of each label; empty if the clip could not be read.
  std::vector<float> probabilities = {};
  std::string error = {};
};

/// Returns an error line without the name of the clip, which the table shows already.
std::string reason_of(const std::string& line, const std::string& clip) {
  const size_t at = line.find(clip + ": ");
  return at == std::string::npos ? line : line.substr(at + clip.size() + 2);
}

/// Returns a row for each clip, or for each window of it.
std::vector<PredictedRow> rows_of(const ClipList& list, const ClipDatasetOptions& options, double seconds) {
  std::vector<PredictedRow> rows;
  for (int64_t clip = 0; clip < list.size(); ++clip) {
    if (seconds == 0) {
      rows.push_back({.window = {.clip = clip}});
      continue;
    }
    const std::string& path = list.clips[static_cast<size_t>(clip)].path;
    const auto whole = clip_seconds(path, options.media, options.modality);
    if (!whole.ok()) {
      rows.push_back({.window = {.clip = clip}, .error = reason_of(error_line(whole.status()), path)});
      continue;
    }
    for (const ClipWindow& window : windows_of(clip, *whole, seconds)) rows.push_back({.window = window});
  }
  return rows;
}

/// Fills the rows that have no error yet.
absl::Status classify(const TrainedRun& run, const EmotionOptions& options, const std::vector<std::string>& labels,
                      const std::shared_ptr<const ClipDataset>& clips, bool windows, std::vector<PredictedRow>& rows) {
  std::vector<size_t> readable;  // row of each window
  std::vector<ClipWindow> parts;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!rows[i].error.empty()) continue;
    readable.push_back(i);
    parts.push_back(rows[i].window);
  }
  std::shared_ptr<const Dataset> dataset = clips;
  if (windows) dataset = std::make_shared<ClipWindowDataset>(clips, parts);
  const EmotionModelOptions model = model_options(options, static_cast<int64_t>(labels.size()));
  TRAINKIT_ASSIGN_OR_RETURN(const Predictor predictor, run.load([&] { return std::make_shared<EmotionModel>(model); },
                                                                windows ? "windows" : "clips"));
  const auto forward = [](EmotionModel& network, const Batch& batch) {
    return at::softmax(class_scores(network, batch), 1, at::kFloat);
  };
  const auto take = [&](const Batch& batch, const at::Tensor& probabilities) {
    const at::Tensor values = probabilities.contiguous();
    const int64_t classes = values.size(1);
    for (int64_t i = 0; i < batch.size(); ++i) {
      const float* const each = values.const_data_ptr<float>() + i * classes;
      const size_t row = readable[static_cast<size_t>(batch.row_indices()[static_cast<size_t>(i)])];
      rows[row].probabilities.assign(each, each + classes);
    }
    return absl::OkStatus();
  };
  TRAINKIT_ASSIGN_OR_RETURN(const auto bad, predictor.run(dataset, forward, take));
  for (const BadSample& sample : bad) {
    rows[readable[static_cast<size_t>(sample.index)]].error = reason_of(sample.cause, sample.name);
  }
  return absl::OkStatus();
}

size_t best_label(const PredictedRow& row) {
  return std::max_element(row.probabilities.begin(), row.probabilities.end()) - row.probabilities.begin();
}

void print_table(const ClipList& list, const std::vector<PredictedRow>& rows, bool windows) {
  size_t width = 4;
  for (const Clip& clip : list.clips) width = std::max(width, clip.path.size());
  print_line(
      fmt::format("{:<{}}  {}{:<12} {}", "clip", width, windows ? "seconds          " : "", "emotion", "probability"));
  for (const PredictedRow& row : rows) {
    const std::string& path = list.clips[static_cast<size_t>(row.window.clip)].path;
    const std::string time = windows ? fmt::format("{:>6.2f} - {:>6.2f}  ", row.window.begin, row.window.end) : "";
    if (!row.error.empty()) {
      print_line(fmt::format("{:<{}}  unreadable: {}", escape_text(path), width, escape_text(row.error, 300)));
    } else {
      const size_t best = best_label(row);
      print_line(fmt::format("{:<{}}  {}{:<12} {:.4f}", escape_text(path), width, time, list.labels[best],
                             row.probabilities[best]));
    }
  }
}

absl::Status write_probabilities(const std::string& path, const ClipList& list, const std::vector<PredictedRow>& rows,
                                 bool windows) {
  std::string text = windows ? "clip,begin,end,predicted" : "clip,predicted";
  for (const std::string& label : list.labels) text += fmt::format(",{}", csv_field("p_" + label));
  text += ",error\n";
  for (const PredictedRow& row : rows) {
    text += csv_field(list.clips[static_cast<size_t>(row.window.clip)].path);
    if (windows) text += fmt::format(",{:.3f},{:.3f}", row.window.begin, row.window.end);
    text += "," + (row.error.empty() ? csv_field(list.labels[best_label(row)]) : "");
    for (size_t k = 0; k < list.labels.size(); ++k) {
      text += row.error.empty() ? fmt::format(",{:.6g}", row.probabilities[k]) : ",";
    }
    text += "," + csv_field(row.error) + "\n";
  }
  return write_file_atomically(Fs::posix(), path, text);
}

absl::StatusOr<int> predict_clips(TrainedRun& run, const EmotionOptions& options, const PredictOptions& asked) {
  if (run.words.empty()) return bad_word("CLIP", "not given", "clips, or a folder of clips");
  if (!asked.out.empty()) TRAINKIT_RETURN_IF_ERROR(run.check_output(asked.out));
  TRAINKIT_RETURN_IF_ERROR(load_media_libraries());
  TRAINKIT_ASSIGN_OR_RETURN(const auto labels, read_labels(run, options));
  std::vector<std::string> notes;
  TRAINKIT_ASSIGN_OR_RETURN(const auto paths, find_clips(run.words, notes));
  ClipList list{.csv = "the command line", .folder = ".", .labels = labels, .clips = {}};
  for (const std::string& path : paths) list.clips.push_back({.path = path});
  constexpr double kShortestWindow = 0.04;  // a frame of a video with 25 frames per second
  const bool windows = asked.window > 0;
  if (windows && asked.window < kShortestWindow) {
    return run.parser.invalid("window", "too short", fmt::format("0, or at least {} s", kShortestWindow));
  }
  const ClipDatasetOptions reading = dataset_options(options);
  std::vector<PredictedRow> rows = rows_of(list, reading, asked.window);
  const auto clips = std::make_shared<const ClipDataset>(list, reading);
  run.predictor.loader.on_error = OnError::kSkip;
  TRAINKIT_RETURN_IF_ERROR(classify(run, options, labels, clips, windows, rows));
  if (std::all_of(rows.begin(), rows.end(), [](const PredictedRow& row) { return !row.error.empty(); })) {
    return data_error("data.media", {.file = paths.front()},
                      paths.size() == 1 ? rows.front().error : "none of the clips can be read: " + rows.front().error);
  }
  if (!asked.out.empty()) TRAINKIT_RETURN_IF_ERROR(write_probabilities(asked.out, list, rows, windows));
  const auto checkpoint = resolve_checkpoint("latest", run.weights.run);
  const std::string sound = checkpoint.ok() ? describe_other_sound(*checkpoint, options) : "";
  if (!sound.empty()) notes.push_back(sound);
  print_table(list, rows, windows);
  for (const std::string& note : notes) print_line(escape_text(note, 300));
  if (!asked.out.empty()) print_line("wrote " + asked.out);
  return 0;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> read_labels(const TrainedRun& run, const EmotionOptions& options) {
  // Runs of earlier versions have no file; the labels of MELD are known.
  if (options.dataset == "MELD" && !Fs::posix().exists(run.weights.run + "/" + kLabelsFile)) return meld_emotions();
  TRAINKIT_ASSIGN_OR_RETURN(const std::string path, run.file(kLabelsFile, "its labels"));
  return load_labels(path);
}

absl::StatusOr<std::vector<std::string>> load_labels(const std::string& path) {
  std::vector<std::string> labels;
  TRAINKIT_RETURN_IF_ERROR(
      load_values(path, {{"", &labels, 1}},
                  {.exit_code = ExitCode::kWeights, .id = "weights.labels", .expected = "a list of labels"}));
  return labels;
}

absl::Status save_labels(const std::string& path, const std::vector<std::string>& labels) {
  return save_values(path, {{"", labels}});
}

absl::StatusOr<std::vector<std::string>> find_clips(const std::vector<std::string>& words,
                                                    std::vector<std::string>& notes) {
  static const std::set<std::string> kinds = {".mp4",  ".m4v", ".mov", ".m4a",  ".mkv",
                                              ".webm", ".avi", ".wav", ".flac", ".mp3"};
  std::vector<std::string> clips;
  for (const std::string& word : words) {
    std::error_code error;
    if (!fs::is_directory(word, error)) {
      clips.push_back(word);
      continue;
    }
    const FolderFiles found = list_files(word, kinds, error);
    const std::string note = left_out_note(found.left_out);
    if (!note.empty()) notes.push_back(word + ": " + note);
    if (error || found.names.empty()) {
      return data_error("data.empty", {.file = word},
                        error ? "cannot be read: " + error.message() : "no clips in this folder", note,
                        "files such as .mp4, .mkv, .wav or .flac");
    }
    for (const std::string& name : found.names) clips.push_back((fs::path(word) / name).string());
  }
  return clips;
}

AppCommand predict_command(App& app, const EmotionOptions& options) {
  const auto asked = std::make_shared<PredictOptions>();
  return command_on_run(
      app, {.name = "predict",
            .summary = "Recognises the emotion of clips with a trained run.",
            .words = "RUN CLIP|FOLDER ...",
            .examples = {"trainkit-emotion predict runs/emotion a.mp4 b.mp4",
                         "trainkit-emotion predict runs/emotion clips --out probabilities.csv",
                         "trainkit-emotion predict runs/emotion talk.mp4 --window 2 --out talk.csv"},
            .flags = {"out", "window", "overwrite"},
            .add_flags =
                [asked](ConfigParser& parser) {
                  parser.set_help("overwrite", "Replace the file of --out if it exists.");
                  parser.add("out", &asked->out,
                             {.help = "Write the probabilities of all labels to this csv file.",
                              .path = PathKind::kOutput,
                              .metavar = "FILE",
                              .flag_only = true});
                  parser.add("window", &asked->window,
                             {.help = "Predict for each window of this many seconds, at least 0.04; 0: once per clip.",
                              .min = 0,
                              .max = 600,
                              .metavar = "SECONDS",
                              .flag_only = true});
                },
            .body = [&options, asked](TrainedRun& run) { return predict_clips(run, options, *asked); }});
}

}  // namespace trainkit::emotion
