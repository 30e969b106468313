#include "emotion_recognition/clips.h"

#include <absl/strings/match.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <unordered_map>

#include "trainkit/core/data_error.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/io/table.h"

namespace trainkit::emotion {
namespace {

namespace fs = std::filesystem;

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

absl::Status not_found(const std::string& data_dir, const std::string& what, const std::vector<std::string>& places) {
  return data_error("data.missing", {.file = data_dir}, "no " + what, "",
                    fmt::format("one of {}", fmt::join(places, ", ")),
                    "to write a small data set with this layout: --make_demo_data DIR");
}

/// Indices of the columns; -1 if unused.
struct Columns {
  int64_t label = 0, dialogue = -1, utterance = -1, path = -1, group = -1;
};

/// Returns the position of a column, in any case if no column has exactly this name.
absl::StatusOr<int64_t> find_group(const Table& file, const std::string& name) {
  const auto is_same = [&](const std::string& column) { return absl::EqualsIgnoreCase(column, name); };
  const std::vector<std::string>& all = file.columns();
  if (file.contains(name) || std::count_if(all.begin(), all.end(), is_same) != 1) return file.column(name);
  return std::find_if(all.begin(), all.end(), is_same) - all.begin();
}

absl::StatusOr<Columns> find_columns(const Table& file, const ClipColumns& names) {
  Columns columns;
  TRAINKIT_ASSIGN_OR_RETURN(columns.label, file.column(names.label));
  if (!names.path.empty()) {
    TRAINKIT_ASSIGN_OR_RETURN(columns.path, file.column(names.path));
  } else {
    TRAINKIT_ASSIGN_OR_RETURN(columns.dialogue, file.column(names.dialogue));
    TRAINKIT_ASSIGN_OR_RETURN(columns.utterance, file.column(names.utterance));
  }
  if (!names.group.empty()) {
    TRAINKIT_ASSIGN_OR_RETURN(columns.group, find_group(file, names.group));
  }
  return columns;
}

absl::StatusOr<int64_t> id(const Table& file, int64_t row, int64_t column) {
  TRAINKIT_ASSIGN_OR_RETURN(const int64_t number, file.integer(row, column));
  if (number < 0) return file.bad(row, column, "negative", "0 or more");
  return number;
}

/// Returns the path of a row's clip below its folder.
absl::StatusOr<std::string> clip_name(const Table& file, int64_t row, const Columns& columns) {
  if (columns.path < 0) {
    TRAINKIT_ASSIGN_OR_RETURN(const int64_t dialogue, id(file, row, columns.dialogue));
    TRAINKIT_ASSIGN_OR_RETURN(const int64_t utterance, id(file, row, columns.utterance));
    return fmt::format("dia{}_utt{}.mp4", dialogue, utterance);
  }
  const fs::path path(file.at(row, columns.path));
  if (path.empty()) return file.bad(row, columns.path, "empty", "path of a clip");
  const bool leaves = path.is_absolute() || std::find(path.begin(), path.end(), "..") != path.end();
  if (leaves) return file.bad(row, columns.path, "path outside the folder of the clips", "a path below it");
  return path.lexically_normal().string();
}

absl::StatusOr<int64_t> label_of(const Table& file, int64_t row, int64_t column,
                                 const std::vector<std::string>& labels) {
  const std::string_view text = file.at(row, column);
  const auto found = std::find(labels.begin(), labels.end(), text);
  if (found != labels.end()) return found - labels.begin();
  const std::string nearest = nearest_name(text, labels);
  return file.bad(row, column, text.empty() ? "empty" : "unknown label", fmt::format("one of {}", labels.size()),
                  nearest.empty() ? fmt::format("the labels are {}", fmt::join(labels, ", "))
                                  : fmt::format("did you mean '{}'?", nearest));
}

std::vector<std::string> labels_in(const Table& file, int64_t column) {
  std::set<std::string> labels;
  for (int64_t row = 0; row < file.rows(); ++row) {
    if (!file.at(row, column).empty()) labels.emplace(file.at(row, column));
  }
  return {labels.begin(), labels.end()};
}

/// Returns whether the clip has a file. Its real path must be below `root`, a canonical path: a symbolic link in an
/// untrusted data set must not reach other files.
absl::StatusOr<bool> has_file(const Table& file, int64_t row, const Columns& columns, const std::string& path,
                              const fs::path& root) {
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  if (error) return false;
  if (std::mismatch(root.begin(), root.end(), real.begin(), real.end()).first != root.end()) {
    return file.bad(row, columns.path >= 0 ? columns.path : columns.utterance,
                    "the clip is a link that leaves the folder of the clips", root.string());
  }
  return true;
}

}  // namespace

std::string ClipList::digest() const {
  std::string text;
  for (const Clip& clip : clips) {
    text += fmt::format("{} {}\n", std::filesystem::path(clip.path).filename().string(), clip.label);
  }
  return Digest::of(text);
}

const std::vector<std::string>& meld_emotions() {
  static const std::vector<std::string> names = {"neutral", "surprise", "fear", "sadness", "joy", "disgust", "anger"};
  return names;
}

std::vector<int64_t> ClipList::counts() const {
  std::vector<int64_t> counts(labels.size());
  for (const Clip& clip : clips) ++counts[static_cast<size_t>(clip.label)];
  return counts;
}

std::vector<BadSample> ClipList::absent() const {
  std::vector<BadSample> samples;
  for (int64_t i = 0; i < size(); ++i) {
    const Clip& clip = clips[static_cast<size_t>(i)];
    if (!clip.is_absent) continue;
    samples.push_back(
        {.index = i, .name = clip.path, .cause = fmt::format("error[data.missing] {}: no such file", clip.path)});
  }
  return samples;
}

absl::StatusOr<SplitFiles> find_split(const std::string& data_dir, const std::string& split) {
  if (!is_folder(data_dir)) return not_found(data_dir, "such folder", {"a folder with MELD's layout"});
  const fs::path root(data_dir);
  const std::string table = split + "_sent_emo.csv";
  SplitFiles files;
  for (const fs::path& path : {root / table, root / split / table}) {
    if (files.csv.empty() && fs::exists(path)) files.csv = path.string();
  }
  if (files.csv.empty()) return not_found(data_dir, "csv file of '" + split + "'", {table, split + "/" + table});
  const std::vector<std::string> names = {split + "_splits", split + "_splits_complete",
                                          "output_repeated_splits_" + split, split};
  std::vector<std::string> places;
  for (const std::string& above : {std::string(), split + "/"}) {
    for (const std::string& name : names) places.push_back(above + name);
  }
  // Try <split> itself after <split>/...: it may contain one of the other folders.
  std::rotate(places.begin() + 3, places.begin() + 4, places.end());
  for (const std::string& place : places) {
    if (files.folder.empty() && is_folder(root / place)) files.folder = (root / place).string();
  }
  if (files.folder.empty()) return not_found(data_dir, "folder with the clips of '" + split + "'", places);
  return files;
}

absl::StatusOr<ClipList> read_clips(const SplitFiles& files, const ClipColumns& names,
                                    const std::vector<std::string>& labels) {
  TRAINKIT_ASSIGN_OR_RETURN(const Table file, Table::open(files.csv, {.separator = std::string(1, names.delimiter),
                                                                      .separator_flag = "--csv_delimiter"}));
  TRAINKIT_ASSIGN_OR_RETURN(const Columns columns, find_columns(file, names));
  ClipList list{.csv = files.csv, .folder = files.folder, .labels = labels, .clips = {}};
  if (list.labels.empty()) list.labels = labels_in(file, columns.label);
  std::error_code ignored;
  const fs::path root = fs::canonical(files.folder, ignored);
  std::unordered_map<std::string, int64_t> lines;
  for (int64_t row = 0; row < file.rows(); ++row) {
    TRAINKIT_ASSIGN_OR_RETURN(const std::string name, clip_name(file, row, columns));
    TRAINKIT_ASSIGN_OR_RETURN(const int64_t label, label_of(file, row, columns.label, list.labels));
    const auto [first, is_new] = lines.emplace(name, file.line(row));
    if (!is_new) {
      return file.bad(row, columns.path >= 0 ? columns.path : columns.utterance,
                      fmt::format("{}: duplicate of line {}", name, first->second), "each clip once");
    }
    std::string path = (fs::path(files.folder) / name).string();
    TRAINKIT_ASSIGN_OR_RETURN(const bool there, has_file(file, row, columns, path, root));
    list.missing += there ? 0 : 1;
    std::string group = columns.group < 0 ? "" : std::string(file.at(row, columns.group));
    if (columns.group >= 0 && group.empty()) return file.bad(row, columns.group, "empty", "the group of the clip");
    list.clips.push_back({std::move(path), label, file.line(row), !there, std::move(group)});
  }
  if (list.missing == list.size()) {
    return data_error("data.missing", {.file = files.folder},
                      "none of the clips listed in " + files.csv + " exists here", "",
                      fs::path(list.clips.front().path).filename().string() + " and others");
  }
  return list;
}

absl::Status check_absent(const ClipList& list, double most) {
  if (static_cast<double>(list.missing) <= most * static_cast<double>(list.size())) return absl::OkStatus();
  const auto first = std::find_if(list.clips.begin(), list.clips.end(), [](const Clip& c) { return c.is_absent; });
  const double share = static_cast<double>(list.missing) / static_cast<double>(list.size());
  return data_error("data.missing", {.file = list.csv},
                    fmt::format("{} of {} clips have no file, the first is {} (line {})", list.missing, list.size(),
                                first->path, first->line),
                    fmt::format("{:.1f}%", 100 * share),
                    fmt::format("at most {:g}% (--max_missing_share {:g})", 100 * most, most),
                    "complete the folder of the clips, or raise --max_missing_share");
}

absl::Status check_disjoint(const ClipList& a, const ClipList& b) {
  const auto real = [](const Clip& clip) {
    std::error_code error;
    const fs::path path = fs::canonical(clip.path, error);
    return error ? clip.path : path.string();
  };
  std::unordered_map<std::string, int64_t> lines;
  for (const Clip& clip : a.clips) lines.emplace(real(clip), clip.line);
  for (const Clip& clip : b.clips) {
    const auto found = lines.find(real(clip));
    if (found == lines.end()) continue;
    return data_error("data.split", {.file = b.csv, .line = clip.line},
                      fmt::format("the clip is also in {}:{}", a.csv, found->second), clip.path,
                      "splits that share no clip");
  }
  return absl::OkStatus();
}

ClipList select(const ClipList& list, const std::vector<int64_t>& rows) {
  ClipList some{.csv = list.csv, .folder = list.folder, .labels = list.labels, .clips = {}};
  for (const int64_t row : rows) {
    some.clips.push_back(list.clips[static_cast<size_t>(row)]);
    some.missing += some.clips.back().is_absent ? 1 : 0;
  }
  return some;
}

std::string missing_classes(const ClipList& train) {
  const std::vector<int64_t> counts = train.counts();
  std::vector<std::string> none;
  for (size_t label = 0; label < counts.size(); ++label) {
    if (counts[label] == 0) none.push_back(train.labels[label]);
  }
  if (none.empty()) return "";
  return fmt::format("{} has no clip of {}", train.csv, fmt::join(none, ", "));
}

}  // namespace trainkit::emotion
