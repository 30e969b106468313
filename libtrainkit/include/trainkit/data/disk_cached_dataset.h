#pragma once
/// A row cache in one file. docs/formats/row-cache.md describes the format.

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

/// Reports progress: `done` of `total` rows are cached or refused. Return false to stop. Calls do not overlap.
using CacheProgress = std::function<bool(int64_t done, int64_t total)>;

struct CacheBuild {
  /// Number of rows in the file.
  int64_t cached_rows = 0;
  /// Indices of the rows that the dataset could not read, ascending. Each later read of such a row asks the dataset
  /// again.
  std::vector<int64_t> refused = {};
};

/// Caches rows of a dataset in a packed file. The first read of a row goes to the dataset; later reads, in this run and
/// in later runs, use memory-mapped pages. Wrap a slow, deterministic step such as decoding, and put random
/// augmentation outside the cache.
///
///   auto cached = DiskCachedDataset::open(clips, "/fast/clips.rows", origin).value();
///   cached->build(8);                                  // optional: the first epoch fills the cache as well
///
/// Each row is stored with its digest. A process checks the digest the first time that it reads the row. A row that is
/// incomplete (the run was killed) or damaged is read from the dataset again. Any number of processes can therefore use
/// the file while it is being filled, and filling resumes where it stopped.
///
/// Threads: all functions may be called from any thread. Two workers that request the same new row at once both read
/// it.
class DiskCachedDataset final : public Dataset {
 public:
  /// Opens the file, or creates it with space for all rows. It reserves file_bytes() on the disk at once, so that a
  /// full disk is reported here. `origin` describes the inputs of the rows (files, sizes, times, options). A file with
  /// another origin, other fields, another row count or a damaged header is replaced. Errors (exit code 6):
  /// storage.cache names the path and the disk's error, or the number of missing bytes. Throws c10::ValueError if the
  /// dataset is null.
  static absl::StatusOr<std::shared_ptr<const DiskCachedDataset>> open(std::shared_ptr<const Dataset> dataset,
                                                                       const std::string& path,
                                                                       const std::string& origin);
  ~DiskCachedDataset() override;

  /// Size of the file that open() creates.
  static int64_t file_bytes(const Dataset& dataset);

  int64_t size() const override { return dataset_->size(); }
  const std::vector<FieldSpec>& fields() const override { return dataset_->fields(); }
  void get(const RowKey& key, const BatchView& out, int64_t at) const override;
  void prefetch(int64_t index) const override;
  std::string describe(int64_t index) const override { return dataset_->describe(index); }

  /// Reads all missing rows with `num_threads` threads and flushes the file. Skips rows that the dataset cannot read.
  /// Returns kCancelled if `progress` returned false, and storage.cache if the disk failed.
  absl::StatusOr<CacheBuild> build(int num_threads, const CacheProgress& progress = {}) const;

  /// Number of rows in the file, including those that other processes wrote before open().
  int64_t cached_rows() const { return cached_rows_.load(std::memory_order_relaxed); }
  /// Returns the first write error, or OK. A failing disk makes the cache slower but does not stop the run.
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
  std::unique_ptr<std::atomic<bool>[]> checked_;  // rows whose digest this process has verified
  mutable std::atomic<int64_t> cached_rows_{0};
  mutable std::mutex mutex_;
  mutable absl::Status write_status_;
};

}  // namespace trainkit
