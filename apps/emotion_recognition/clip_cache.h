#pragma once
/// Clips decoded once: --cache_dir.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "emotion_recognition/clip_dataset.h"
#include "trainkit/data/dataset.h"
#include "trainkit/data/disk_cached_dataset.h"

namespace trainkit::emotion {

/// Clips, and what was wrong with those that cannot be read: such a clip is opened once, and its error given again.
/// Any number of threads.
class RememberedClips final : public Dataset {
 public:
  explicit RememberedClips(std::shared_ptr<const ClipDataset> clips) : clips_(std::move(clips)) {}

  int64_t size() const override { return clips_->size(); }
  const std::vector<FieldSpec>& fields() const override { return clips_->fields(); }
  void get(const RowKey& key, const BatchView& out, int64_t at) const override;
  std::string describe(int64_t index) const override { return clips_->describe(index); }

  /// The clips that are known to be bad, as JSON, and the same from a file: empty, damaged or of other clips (`origin`)
  /// is as if there were none. Only what the clip itself is to blame for is kept, no missing permission or timeout.
  std::string to_json(const std::string& origin) const;
  void read_json(const std::string& json, const std::string& origin);
  int64_t bad() const;

 private:
  std::shared_ptr<const ClipDataset> clips_;
  mutable std::mutex mutex_;
  mutable std::unordered_map<int64_t, absl::Status> bad_;
};

/// Everything that the rows of `clips` depend on: paths, sizes, times of change, labels, the options of decoding and
/// the libraries that decode.
std::string origin_of(const ClipDataset& clips);

/// A split that is to be cached, under the name of its file.
struct ClipPart {
  std::string name;
  std::shared_ptr<const ClipDataset> clips;
};

struct ClipCacheOptions {
  std::string folder;
  int num_threads = 1;
  /// Of the processes of a run on this machine the one that decodes, unless another run does so already.
  bool first = true;
  /// Called by all of them, once the first holds the locks that are free; the others take theirs after it.
  std::function<absl::Status()> meet = {};
  /// Takes lines for a person; may be empty.
  std::function<void(const std::string&)> say = {};
  /// Asked while clips are decoded or another process is waited for: whether to stop.
  std::function<bool()> stop = {};
};

/// The rows of `parts`, in their order, from files below `folder`; what is not in them yet is decoded now. Each choice
/// of clips and options has a folder of its own, <folder>/<name>-<digest>, with `rows` (docs/formats/row-cache.md) and
/// `bad.json`. One process fills it at a time, under its lock; others wait and find it full. What a killed process has
/// decoded is there for the next one.
///
/// Errors: storage.cache (exit code 6), before anything is decoded if the disk is too small for all of it. kCancelled
/// if `stop` said so.
absl::StatusOr<std::vector<std::shared_ptr<const Dataset>>> cache_clips(const std::vector<ClipPart>& parts,
                                                                        const ClipCacheOptions& options);

/// "cache      21.3 GiB for 13708 clips in /fast, 18.4 GiB of them to be made", with a line end.
std::string describe_cache(const std::vector<ClipPart>& parts, const std::string& folder);

}  // namespace trainkit::emotion
