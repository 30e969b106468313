#pragma once
/// Reads lists of labelled clips from csv files, those of MELD or others.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "trainkit/data/prefetcher.h"

namespace trainkit::emotion {

/// Returns MELD's emotions in the order of its classes. Source: Poria et al., MELD, ACL 2019.
const std::vector<std::string>& meld_emotions();

/// Column names of a csv file of clips. A clip is dia<dialogue>_utt<utterance>.mp4, as in MELD, or the value of the
/// column `path`.
struct ClipColumns {
  std::string label = "Emotion";
  std::string dialogue = "Dialogue_ID";
  std::string utterance = "Utterance_ID";
  /// Column with the path of the clip below its folder. Empty: MELD's file names.
  std::string path = {};
  /// Column of the clip's group, such as the speaker; upper and lower case are alike. Empty: each clip is a group.
  std::string group = {};
  char delimiter = ',';
};

/// A labelled clip.
struct Clip {
  std::string path;
  int64_t label = 0;
  int64_t line = 0;  // line in the csv file
  bool is_absent = false;
  std::string group = {};  // value of ClipColumns::group
};

/// A split: the clips of a csv file, in the order of the file.
struct ClipList {
  std::string csv;
  std::string folder;
  std::vector<std::string> labels;
  std::vector<Clip> clips;
  /// Number of absent clips, those without a file; their rows cannot be read.
  int64_t missing = 0;

  /// Digest of the clips' file names and labels.
  std::string digest() const;

  int64_t size() const { return static_cast<int64_t>(clips.size()); }
  /// Returns the number of clips per label.
  std::vector<int64_t> counts() const;
  /// Returns the absent clips for bad_samples.csv.
  std::vector<BadSample> absent() const;
};

/// The csv file of a split ("train", "dev", "test") and the folder of its clips.
struct SplitFiles {
  std::string csv, folder;
};

/// Finds the files of a split below `data_dir`, under every name in MELD's archives. The table is <split>_sent_emo.csv,
/// there or in <split>/. The clips are in <split>_splits, <split>_splits_complete, output_repeated_splits_<split>,
/// or <split>, there or in <split>/. Error: data.missing, which lists the places.
absl::StatusOr<SplitFiles> find_split(const std::string& data_dir, const std::string& split);

/// Reads a split. `labels` are the classes; if empty, the labels in the file, sorted.
///
/// Errors, exit code 4, with file and line: those of Table; data.csv for an unknown or empty label, an id that is not
/// a number or is negative, a duplicate clip, and a path outside the folder (also through a symbolic link);
/// data.missing if no clip of the list has a file.
absl::StatusOr<ClipList> read_clips(const SplitFiles& files, const ClipColumns& columns,
                                    const std::vector<std::string>& labels);

/// Returns the error data.missing if more than the share `most` of the listed clips has no file.
absl::Status check_absent(const ClipList& list, double most);

/// Returns the error data.split if a file is in both lists, also through symbolic links.
absl::Status check_disjoint(const ClipList& a, const ClipList& b);

/// Returns the clips `rows` of `list`.
ClipList select(const ClipList& list, const std::vector<int64_t>& rows);

/// Returns a warning that lists the labels without a clip in `train`; empty if there are none.
std::string missing_classes(const ClipList& train);

}  // namespace trainkit::emotion
