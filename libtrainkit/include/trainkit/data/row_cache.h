#pragma once
/// Reads slow data sets once and keeps their rows on disk, for all processes of a run and for later runs.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trainkit/core/error.h"
#include "trainkit/data/adapters.h"

namespace trainkit {

/// A data set to cache.
struct RowCachePart {
  /// First part of the name of its folder: "train".
  std::string name;
  std::shared_ptr<const Dataset> rows;
  /// Paths and options. Each text has a folder of its own, so that runs with other options keep their rows.
  std::string key;
  /// Returns everything else that the rows depend on: sizes and times of files, versions of decoders. Rows of another
  /// origin are read again.
  std::function<std::string()> origin;
};

struct RowCacheOptions {
  /// Folder of all caches.
  std::string folder;
  /// Threads that read.
  int num_threads = 1;
  /// Whether this process reads; true for one process of a run on this machine. It still waits for another run that
  /// reads the same rows.
  bool first = true;
  /// Barrier over the processes of the run, called after the first one has taken the free locks. May be empty.
  std::function<absl::Status()> barrier = {};
  /// Prints a progress line. May be empty.
  std::function<void(const std::string&)> say = {};
  /// Returns whether to stop. Called while rows are read and while waiting for another process. May be empty.
  std::function<bool()> stop = {};
  /// Whether an error is a lasting property of a row, such as a damaged file, and not a timeout or a missing
  /// permission. Such a row is not read again until the origin changes. Empty: no error is. Called by several threads.
  std::function<bool(const Error&)> is_lasting = {};
  /// What a row is, for messages, and what to do if the disk is too small.
  std::string noun = "rows";
  std::string hint = {};
};

/// Opens the caches of `parts`, reads missing rows, and returns the cached data sets in the same order. A row that
/// cannot be read is a bad row when the loader comes to it. Blocks.
///
/// The folder of a part, <folder>/<name>-<digest of key>, has the files `rows` (docs/formats/row-cache.md) and
/// `bad.json`. One process at a time fills it, under a lock; others wait and find it full. Rows that a killed process
/// has read are used by the next one.
///
/// Errors: storage.cache (exit code 6) before reading if the disk is too small for all rows; kCancelled if `stop`
/// returned true.
absl::StatusOr<std::vector<std::shared_ptr<const DiskCachedDataset>>> cache_rows(const std::vector<RowCachePart>& parts,
                                                                                 const RowCacheOptions& options);

/// Describes the cache: "21.3 GiB for 13708 rows in /fast, 18.4 GiB of them not read yet".
std::string describe_row_cache(const std::vector<RowCachePart>& parts, const RowCacheOptions& options);

}  // namespace trainkit
