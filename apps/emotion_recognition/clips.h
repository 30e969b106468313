#pragma once
/// Which clips there are, and what each is labelled with: MELD's csv files, or any other.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trainkit::emotion {

/// MELD's emotions, in the order of its classes. Source: Poria et al., MELD, ACL 2019.
const std::vector<std::string>& meld_emotions();

/// Columns of a csv file of clips. A clip is dia<dialogue>_utt<utterance>.mp4, as MELD names them, or what
/// `path_column` says.
struct ClipColumns {
  std::string label = "Emotion";
  std::string dialogue = "Dialogue_ID";
  std::string utterance = "Utterance_ID";
  /// The path of the clip below its folder; empty: MELD's names.
  std::string path = {};
  char delimiter = ',';
};

struct Clip {
  std::string path;
  int64_t label = 0;
  int64_t line = 0;  // of the csv file
};

/// A split: the clips of a csv file, in its order.
struct ClipList {
  std::string csv;
  std::string folder;
  std::vector<std::string> labels;
  std::vector<Clip> clips;
  /// Clips of which there is no file: rows that cannot be read.
  int64_t missing = 0;

  int64_t size() const { return static_cast<int64_t>(clips.size()); }
  /// Clips of each label.
  std::vector<int64_t> counts() const;
};

/// The csv file of a split ("train", "dev", "test") and the folder of its clips.
struct SplitFiles {
  std::string csv, folder;
};

/// Looks for them below `data_dir`, under every name that MELD's archives have: <split>_sent_emo.csv there or in
/// <split>/; clips in <split>_splits, <split>_splits_complete, output_repeated_splits_<split>, <split> or <split>/ and
/// one of those. Errors: data.missing, which says where it looked.
absl::StatusOr<SplitFiles> find_split(const std::string& data_dir, const std::string& split);

/// Reads a split. `labels` are the classes; empty takes those that occur, sorted. Errors, exit code 4, with file and
/// line: those of CsvFile; data.csv for an unknown or empty label, an id that is no number or negative, a clip twice, a
/// path that leaves the folder (also through a symbolic link); data.missing if no clip of the list has a file.
absl::StatusOr<ClipList> read_clips(const SplitFiles& files, const ClipColumns& columns,
                                    const std::vector<std::string>& labels);

/// data.split if a file is in both.
absl::Status check_disjoint(const ClipList& a, const ClipList& b);

/// Labels that `train` has no clip of, as a line to warn with; empty if it has all.
std::string missing_classes(const ClipList& train);

}  // namespace trainkit::emotion
