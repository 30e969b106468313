#pragma once
/// Decodes clips once and caches their rows on disk (--cache_dir).

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
#include "trainkit/data/adapters.h"
#include "trainkit/data/dataset.h"

namespace trainkit::emotion {

/// Wraps a ClipDataset and remembers the errors of unreadable clips: each is opened once; later reads repeat the error.
/// Thread-safe.
class RememberedClips final : public Dataset {
 public:
  explicit RememberedClips(std::shared_ptr<const ClipDataset> clips) : clips_(std::move(clips)) {}

  int64_t size() const override { return clips_->size(); }
  const std::vector<FieldSpec>& fields() const override { return clips_->fields(); }
  void get(const RowKey& key, const BatchView& out, int64_t at) const override;
  std::string describe(int64_t index) const override { return clips_->describe(index); }

  /// Returns the clips known to be bad, with their errors, as JSON. Includes only errors of the clip itself, not a
  /// missing permission or a timeout. `origin` identifies the clips (origin_of).
  std::string to_json(const std::string& origin) const;
  /// Adds the bad clips of such a JSON text. Ignores a text that is empty, damaged or has another origin.
  void read_json(const std::string& json, const std::string& origin);
  /// Number of clips known to be bad.
  int64_t bad() const;

 private:
  std::shared_ptr<const ClipDataset> clips_;
  mutable std::mutex mutex_;
  mutable std::unordered_map<int64_t, absl::Status> bad_;
};

/// Returns a text with everything that the rows of `clips` depend on: paths, sizes, modification times, labels,
/// decoding options, and the versions of the decoding libraries.
std::string origin_of(const ClipDataset& clips);

/// A split to cache. `name` is the first part of its folder name.
struct ClipPart {
  std::string name;
  std::shared_ptr<const ClipDataset> clips;
};

struct ClipCacheOptions {
  /// Folder of all caches.
  std::string folder;
  /// Threads that decode.
  int num_threads = 1;
  /// Whether this process decodes; true for one process of a run on this machine. It still waits for another run that
  /// decodes the same clips.
  bool first = true;
  /// Barrier over the processes of the run, called after the first one has taken the free locks. May be empty.
  std::function<absl::Status()> barrier = {};
  /// Prints a progress line. May be empty.
  std::function<void(const std::string&)> say = {};
  /// Returns whether to stop. Called while clips are decoded and while waiting for another process. May be empty.
  std::function<bool()> stop = {};
};

/// Opens the caches of `parts`, decodes missing clips, and returns the cached rows in the same order. Blocks.
///
/// Each choice of clips and options has its own folder <folder>/<name>-<digest> with the files `rows`
/// (docs/formats/row-cache.md) and `bad.json`. One process at a time fills it, under a lock; others wait and find it
/// full. Rows that a killed process has decoded are used by the next one.
///
/// Errors: storage.cache (exit code 6) before decoding if the disk is too small for all rows; kCancelled if `stop`
/// returned true.
absl::StatusOr<std::vector<std::shared_ptr<const Dataset>>> cache_clips(const std::vector<ClipPart>& parts,
                                                                        const ClipCacheOptions& options);

/// Describes the cache: "21.3 GiB for 13708 clips in /fast, 18.4 GiB of them not decoded yet".
std::string describe_cache(const std::vector<ClipPart>& parts, const std::string& folder);

}  // namespace trainkit::emotion
