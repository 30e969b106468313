#pragma once
/// Rows kept in one file once they were read. The format is docs/formats/row-cache.md.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "trainkit/data/dataset.h"
#include "trainkit/io/mapped_file.h"

namespace trainkit {

/// Says how far a cache is: `done` of `total` rows are in it or were refused. Return false to stop. One call at a time.
using CacheProgress = std::function<bool(int64_t done, int64_t total)>;

struct CacheBuild {
  /// Rows in the file.
  int64_t cached_rows = 0;
  /// Rows that the dataset refused, ascending. They are asked for again whenever they are read.
  std::vector<int64_t> refused = {};
};

/// Rows of a dataset from a packed file: read from the dataset the first time, from memory-mapped pages ever after, in
/// this run and the next. Put it around what is slow and always the same (decoding), and random augmentation around it.
///
///   auto cached = DiskCachedDataset::open(clips, "/fast/clips.rows", origin).value();
///   cached->build(8);                                  // or let the first epoch do it
///
/// Each row stands with its digest, which is compared the first time that a process reads the row: a row that was half
/// written when a run was killed, or that a disk has damaged, is read from the dataset again. So the file can be used
/// while it is being filled, by any number of processes, and filling goes on where it stopped.
///
/// Threads: everything may be called from any thread. Two workers that want the same new row at once both read it.
class DiskCachedDataset final : public Dataset {
 public:
  /// Opens the file, or makes it with room for all rows: file_bytes() of disk are taken at once, so that a disk that is
  /// too small is known now. `origin` says what the rows depend on (files, sizes, times, options): a file of another
  /// origin, of other fields or another number of rows, or whose header is damaged, is replaced. Errors (exit code 6):
  /// storage.cache names the path and what the disk said, or how many bytes are missing. Throws c10::ValueError if the
  /// dataset is null.
  static absl::StatusOr<std::shared_ptr<const DiskCachedDataset>> open(std::shared_ptr<const Dataset> dataset,
                                                                       const std::string& path,
                                                                       const std::string& origin);
  ~DiskCachedDataset() override;

  /// Size of the file that open() makes.
  static int64_t file_bytes(const Dataset& dataset);

  int64_t size() const override { return dataset_->size(); }
  const std::vector<FieldSpec>& fields() const override { return dataset_->fields(); }
  void get(const RowKey& key, const BatchView& out, int64_t at) const override;
  void prefetch(int64_t index) const override;
  std::string describe(int64_t index) const override { return dataset_->describe(index); }

  /// Reads all rows that are missing, in `num_threads` threads, and flushes the file. A row that the dataset refuses is
  /// left out. kCancelled if `progress` returned false; storage.cache if the disk failed.
  absl::StatusOr<CacheBuild> build(int num_threads, const CacheProgress& progress = {}) const;

  /// Rows in the file, those included that other processes wrote before open().
  int64_t cached_rows() const { return cached_rows_.load(std::memory_order_relaxed); }
  /// Whether every row so far could be written: a disk that fails costs time, not the run.
  absl::Status write_status() const;

 private:
  DiskCachedDataset(std::shared_ptr<const Dataset> dataset, std::shared_ptr<const MappedFile> file, int descriptor);
  bool present(int64_t index) const;
  bool read(int64_t index, const BatchView& out, int64_t at) const;
  void write(int64_t index, const BatchView& from, int64_t at) const;

  std::shared_ptr<const Dataset> dataset_;
  std::shared_ptr<const MappedFile> file_;
  int descriptor_;
  int64_t rows_offset_, row_stride_, row_bytes_;
  std::unique_ptr<std::atomic<bool>[]> checked_;  // rows whose digest was compared, or that this process wrote
  mutable std::atomic<int64_t> cached_rows_{0};
  mutable std::mutex mutex_;
  mutable absl::Status write_status_;
};

}  // namespace trainkit
