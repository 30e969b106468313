#pragma once
/// Datasets that wrap other datasets.
///
///   auto photos  = std::make_shared<CachedDataset>(folder);                        // decoded once
///   auto flipped = std::make_shared<MapDataset>(photos, [](const RowKey& key, const BatchView& row) {
///     if (key.random().uniform() < 0.5) flip(row.row<float>(0, 0));                // drawn again in every epoch
///   });
///   auto all = std::make_shared<ConcatDataset>(ConcatDataset({flipped, more}));
///
/// Each wrapper calls get_batch of the inner dataset where it can, and forwards prefetch and describe.
///
/// A row that occurs several times (an index that is repeated in a Subset, a dataset that is concatenated with itself
/// or with a part of itself) is augmented differently each time, as in PyTorch. The occurrences get other values of
/// RowKey::draw: functions of the row's position in the wrapper, the same for any number of workers and ranks. Rows
/// that occur once keep theirs.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trainkit/data/dataset.h"
#include "trainkit/io/mapped_file.h"

namespace trainkit {

/// Passes each row through a function.
///
/// Threads: every worker calls the function concurrently. Draw random augmentation from key.random(); a row is then the
/// same for any number of workers. An exception from the function makes the row a bad row (see OnError).
class MapDataset final : public Dataset {
 public:
  /// Changes one row in place. `row` is a view of that row only.
  using InPlace = std::function<void(const RowKey& key, const BatchView& row)>;
  /// Makes a row with other fields. `in` and `out` are views of one row.
  using Function = std::function<void(const RowKey& key, const BatchView& in, const BatchView& out)>;

  /// Both throw c10::ValueError if the dataset is null, the function is empty, or two fields have the same name.
  MapDataset(std::shared_ptr<const Dataset> dataset, InPlace function);
  MapDataset(std::shared_ptr<const Dataset> dataset, std::vector<FieldSpec> fields, Function function);

  int64_t size() const override { return dataset_->size(); }
  const std::vector<FieldSpec>& fields() const override { return fields_; }
  void get(const RowKey& key, const BatchView& out, int64_t at) const override;
  void get_batch(std::span<const RowKey> keys, const BatchView& out) const override;
  void prefetch(int64_t index) const override { dataset_->prefetch(index); }
  std::string describe(int64_t index) const override { return dataset_->describe(index); }
  std::pair<const Dataset*, int64_t> source(int64_t index) const override { return dataset_->source(index); }
  std::vector<const Dataset*> sources() const override { return dataset_->sources(); }

 private:
  void map(std::span<const RowKey> keys, const BatchView& out) const;

  std::shared_ptr<const Dataset> dataset_;
  std::vector<FieldSpec> fields_;
  InPlace in_place_;
  Function function_;
  std::vector<int64_t> in_offsets_;  // byte offset of each field of `in`, per row
  int64_t in_bytes_ = 0;
};

/// Selects rows of a dataset by index: row i is row indices[i] of the inner dataset. Uses 8 bytes per row,
/// 16 if an index is repeated. Source: torch.utils.data.Subset.
class Subset final : public Dataset {
 public:
  /// Throws c10::ValueError if the dataset is null and c10::IndexError if an index is out of range.
  Subset(std::shared_ptr<const Dataset> dataset, std::vector<int64_t> indices);

  int64_t size() const override { return static_cast<int64_t>(indices_.size()); }
  const std::vector<FieldSpec>& fields() const override { return dataset_->fields(); }
  void get(const RowKey& key, const BatchView& out, int64_t at) const override;
  void get_batch(std::span<const RowKey> keys, const BatchView& out) const override;
  void prefetch(int64_t index) const override { dataset_->prefetch(indices_[index]); }
  std::string describe(int64_t index) const override { return dataset_->describe(indices_[index]); }
  std::pair<const Dataset*, int64_t> source(int64_t index) const override { return dataset_->source(indices_[index]); }
  std::vector<const Dataset*> sources() const override { return dataset_->sources(); }

 private:
  RowKey inner_key(const RowKey& key) const {
    return key.inner(indices_[key.index], occurrences_.empty() ? 0 : occurrences_[key.index]);
  }

  std::shared_ptr<const Dataset> dataset_;
  std::vector<int64_t> indices_;
  std::vector<int64_t> occurrences_;  // of the index, among those before it; empty if none is repeated
};

/// Concatenates datasets that have the same fields. If several of them read the same dataset, the constructor looks
/// through their rows once for those that occur in several; the same object twice costs nothing.
/// Source: torch.utils.data.ConcatDataset.
class ConcatDataset final : public Dataset {
 public:
  /// Throws c10::ValueError if `datasets` is empty, one of them is null, or their fields differ.
  explicit ConcatDataset(std::vector<std::shared_ptr<const Dataset>> datasets);

  int64_t size() const override { return ends_.back(); }
  const std::vector<FieldSpec>& fields() const override { return datasets_.front()->fields(); }
  void get(const RowKey& key, const BatchView& out, int64_t at) const override;
  void get_batch(std::span<const RowKey> keys, const BatchView& out) const override;
  void prefetch(int64_t index) const override;
  std::string describe(int64_t index) const override;
  std::pair<const Dataset*, int64_t> source(int64_t index) const override;
  std::vector<const Dataset*> sources() const override;

 private:
  size_t part_of(int64_t index) const;
  int64_t begin_of(size_t part) const { return part == 0 ? 0 : ends_[part - 1]; }
  RowKey inner_key(const RowKey& key, size_t part) const;

  std::vector<std::shared_ptr<const Dataset>> datasets_;
  std::vector<int64_t> ends_;
  // Occurrences of the rows of each part: of all its rows, and instead of those that other datasets have too.
  std::vector<int64_t> part_occurrences_;
  std::vector<std::unordered_map<int64_t, int64_t>> row_occurrences_;
};

/// Joins the rows of datasets side by side: row i has the fields of row i of each dataset, in their order. All have the
/// same number of rows, and each field name occurs once.
///
///   StackDataset({images, masks})      // fields "image" and "mask"
///
/// The datasets get the same key, so that an augmentation that both draw from key.random() is the same in both.
class StackDataset final : public Dataset {
 public:
  /// Throws c10::ValueError if `datasets` is empty, one of them is null, their sizes differ, or two fields have the
  /// same name.
  explicit StackDataset(std::vector<std::shared_ptr<const Dataset>> datasets);

  int64_t size() const override { return datasets_.front()->size(); }
  const std::vector<FieldSpec>& fields() const override { return fields_; }
  void get(const RowKey& key, const BatchView& out, int64_t at) const override;
  void get_batch(std::span<const RowKey> keys, const BatchView& out) const override;
  void prefetch(int64_t index) const override;
  /// The names of the row in the datasets that have one, joined by " + ".
  std::string describe(int64_t index) const override;
  /// Those of the first dataset.
  std::pair<const Dataset*, int64_t> source(int64_t index) const override { return datasets_.front()->source(index); }
  std::vector<const Dataset*> sources() const override { return datasets_.front()->sources(); }

 private:
  /// Calls `read` with each dataset and the view of its fields.
  void for_each(const BatchView& out, const std::function<void(const Dataset&, const BatchView&)>& read) const;

  std::vector<std::shared_ptr<const Dataset>> datasets_;
  std::vector<FieldSpec> fields_;
};

struct CachedDatasetOptions {
  /// Upper bound of the cache in bytes. Rows beyond it are read from the dataset each time. -1 means unlimited.
  int64_t max_bytes = -1;
};

/// Keeps rows in memory after their first read. Wrap a slow, deterministic step such as decoding, and put random
/// augmentation outside the cache: a row keeps the values of its first read.
///
/// Threads: lock-free. Two workers that request the same new row at once both read it. Memory grows as rows arrive.
class CachedDataset final : public Dataset {
 public:
  /// Throws c10::ValueError if the dataset is null and std::bad_alloc if the address space is too small for the cache.
  explicit CachedDataset(std::shared_ptr<const Dataset> dataset, CachedDatasetOptions options = {});
  ~CachedDataset() override;

  int64_t size() const override { return dataset_->size(); }
  const std::vector<FieldSpec>& fields() const override { return dataset_->fields(); }
  void get(const RowKey& key, const BatchView& out, int64_t at) const override;
  void get_batch(std::span<const RowKey> keys, const BatchView& out) const override;
  void prefetch(int64_t index) const override;
  std::string describe(int64_t index) const override { return dataset_->describe(index); }
  std::pair<const Dataset*, int64_t> source(int64_t index) const override { return dataset_->source(index); }
  std::vector<const Dataset*> sources() const override { return dataset_->sources(); }

  /// Number of rows in memory. Callable from any thread.
  int64_t cached_rows() const { return cached_rows_.load(std::memory_order_relaxed); }

 private:
  bool present(int64_t index) const;
  void load(int64_t index, const BatchView& out, int64_t at) const;
  void store(int64_t index, const BatchView& from, int64_t at) const;

  std::shared_ptr<const Dataset> dataset_;
  std::vector<int64_t> offsets_;  // byte offset of each field in a row, then the row size
  int64_t row_bytes_ = 0;
  int64_t capacity_ = 0;  // rows below this index can be cached
  std::byte* rows_ = nullptr;
  std::unique_ptr<std::atomic<uint8_t>[]> states_;
  mutable std::atomic<int64_t> cached_rows_{0};
};

// ---- A row cache in one file. docs/formats/row-cache.md describes the format.

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
  std::pair<const Dataset*, int64_t> source(int64_t index) const override { return dataset_->source(index); }
  std::vector<const Dataset*> sources() const override { return dataset_->sources(); }

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
