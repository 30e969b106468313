#pragma once
/// Datasets made of other datasets.
///
///   auto photos  = std::make_shared<CachedDataset>(folder);                        // decoded once
///   auto flipped = std::make_shared<MapDataset>(photos, [](const RowKey& key, const BatchView& row) {
///     if (key.random().uniform() < 0.5) flip(row.row<float>(0, 0));                // another flip in every epoch
///   });
///   auto all = std::make_shared<ConcatDataset>(ConcatDataset({flipped, more}));
///
/// All keep whole batches whole where the dataset inside is fast at them, and pass on prefetch and describe.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trainkit/data/dataset.h"

namespace trainkit {

/// Each row passed through a function.
///
/// Threads: the function is called from every worker at once. Random augmentation draws from key.random(), so that a
/// row is the same for any number of workers. What the function throws counts against the row.
class MapDataset final : public Dataset {
 public:
  /// Changes a row where it stands: `row` is a view of that row alone.
  using InPlace = std::function<void(const RowKey& key, const BatchView& row)>;
  /// Makes a row of other fields: `in` and `out` are views of one row.
  using Function = std::function<void(const RowKey& key, const BatchView& in, const BatchView& out)>;

  /// Throw c10::ValueError if the dataset is null.
  MapDataset(std::shared_ptr<const Dataset> dataset, InPlace function);
  MapDataset(std::shared_ptr<const Dataset> dataset, std::vector<FieldSpec> fields, Function function);

  int64_t size() const override { return dataset_->size(); }
  const std::vector<FieldSpec>& fields() const override { return fields_; }
  void get(const RowKey& key, const BatchView& out, int64_t at) const override;
  void get_batch(std::span<const RowKey> keys, const BatchView& out) const override;
  void prefetch(int64_t index) const override { dataset_->prefetch(index); }
  std::string describe(int64_t index) const override { return dataset_->describe(index); }

 private:
  void map(std::span<const RowKey> keys, const BatchView& out) const;

  std::shared_ptr<const Dataset> dataset_;
  std::vector<FieldSpec> fields_;
  InPlace in_place_;
  Function function_;
  std::vector<int64_t> in_offsets_;  // of the fields of `in`, per row
  int64_t in_bytes_ = 0;
};

/// Some of the rows of a dataset, in the order given: row i is row indices[i]. 8 bytes a row.
/// Source: torch.utils.data.Subset.
class SubsetDataset final : public Dataset {
 public:
  /// Throws c10::ValueError if the dataset is null, c10::IndexError if an index is not one of its rows.
  SubsetDataset(std::shared_ptr<const Dataset> dataset, std::vector<int64_t> indices);

  int64_t size() const override { return static_cast<int64_t>(indices_.size()); }
  const std::vector<FieldSpec>& fields() const override { return dataset_->fields(); }
  void get(const RowKey& key, const BatchView& out, int64_t at) const override;
  void get_batch(std::span<const RowKey> keys, const BatchView& out) const override;
  void prefetch(int64_t index) const override { dataset_->prefetch(indices_[index]); }
  std::string describe(int64_t index) const override { return dataset_->describe(indices_[index]); }

 private:
  std::shared_ptr<const Dataset> dataset_;
  std::vector<int64_t> indices_;
};

/// The rows of several datasets of the same fields, one dataset after the other.
/// Source: torch.utils.data.ConcatDataset.
class ConcatDataset final : public Dataset {
 public:
  /// Throws c10::ValueError if there is no dataset, one is null, or their fields differ.
  explicit ConcatDataset(std::vector<std::shared_ptr<const Dataset>> datasets);

  int64_t size() const override { return ends_.back(); }
  const std::vector<FieldSpec>& fields() const override { return datasets_.front()->fields(); }
  void get(const RowKey& key, const BatchView& out, int64_t at) const override;
  void get_batch(std::span<const RowKey> keys, const BatchView& out) const override;
  void prefetch(int64_t index) const override;
  std::string describe(int64_t index) const override;

 private:
  size_t part_of(int64_t index) const;
  int64_t begin_of(size_t part) const { return part == 0 ? 0 : ends_[part - 1]; }

  std::vector<std::shared_ptr<const Dataset>> datasets_;
  std::vector<int64_t> ends_;
};

struct CachedDatasetOptions {
  /// Memory to use at most: rows that would be beyond it are read anew each time. -1 is no limit.
  int64_t max_bytes = -1;
};

/// Rows kept in memory once they were read. Put it around what is slow and always the same (decoding), and random
/// augmentation around it: a row is kept as it was when it was first read.
///
/// Threads: no lock; two workers that want the same new row at once both read it. Memory is taken as rows come.
class CachedDataset final : public Dataset {
 public:
  /// Throws c10::ValueError if the dataset is null, std::bad_alloc if the address space does not hold the cache.
  explicit CachedDataset(std::shared_ptr<const Dataset> dataset, CachedDatasetOptions options = {});
  ~CachedDataset() override;

  int64_t size() const override { return dataset_->size(); }
  const std::vector<FieldSpec>& fields() const override { return dataset_->fields(); }
  void get(const RowKey& key, const BatchView& out, int64_t at) const override;
  void get_batch(std::span<const RowKey> keys, const BatchView& out) const override;
  void prefetch(int64_t index) const override;
  std::string describe(int64_t index) const override { return dataset_->describe(index); }

  /// Rows in memory. Any thread.
  int64_t cached_rows() const { return cached_rows_.load(std::memory_order_relaxed); }

 private:
  enum State : uint8_t { kAbsent, kBeingWritten, kPresent };
  bool present(int64_t index) const;
  void load(int64_t index, const BatchView& out, int64_t at) const;
  void store(int64_t index, const BatchView& from, int64_t at) const;

  std::shared_ptr<const Dataset> dataset_;
  std::vector<int64_t> offsets_;  // of the fields of a row
  int64_t row_bytes_ = 0;
  int64_t capacity_ = 0;  // rows below this index have a place
  std::byte* rows_ = nullptr;
  std::unique_ptr<std::atomic<uint8_t>[]> states_;
  mutable std::atomic<int64_t> cached_rows_{0};
};

}  // namespace trainkit
