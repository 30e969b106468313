#pragma once
/// Datasets that fail or block on demand.

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "thread_count.h"
#include "trainkit/data/prefetcher.h"

namespace trainkit::test {

/// Rows with one int64 field "y", the row's index. get calls `hook` with the key first and passes on its exceptions.
class HookedDataset final : public Dataset {
 public:
  using Hook = std::function<void(const RowKey&)>;
  HookedDataset(int64_t size, Hook hook) : size_(size), hook_(std::move(hook)) {}

  int64_t size() const override { return size_; }
  const std::vector<FieldSpec>& fields() const override {
    static const std::vector<FieldSpec> fields = {{"y", at::kLong, {}}};
    return fields;
  }
  void get(const RowKey& key, const BatchView& out, int64_t at) const override {
    hook_(key);
    *out.row<int64_t>(0, at) = key.index;
  }
  std::string describe(int64_t index) const override { return "file" + std::to_string(index) + ".jpg"; }

 private:
  int64_t size_;
  Hook hook_;
};

inline std::shared_ptr<HookedDataset> hooked(int64_t size, HookedDataset::Hook hook) {
  return std::make_shared<HookedDataset>(size, std::move(hook));
}

/// Rows with one int64 field "number": the first random number of the row.
inline std::shared_ptr<const Dataset> number_rows(int64_t size) {
  struct Numbers final : Dataset {
    explicit Numbers(int64_t rows) : rows_(rows) {}
    int64_t size() const override { return rows_; }
    const std::vector<FieldSpec>& fields() const override {
      static const std::vector<FieldSpec> fields = {{"number", at::kLong, {}}};
      return fields;
    }
    void get(const RowKey& key, const BatchView& out, int64_t at) const override {
      *out.row<uint64_t>(0, at) = key.random()();
    }
    int64_t rows_;
  };
  return std::make_shared<Numbers>(size);
}

/// A door that readers wait at until it is opened. Copies are the same door.
class Door {
 public:
  void wait() const {
    std::unique_lock lock(state_->mutex);
    ++state_->waiting;
    state_->changed.notify_all();
    state_->changed.wait(lock, [&] { return state_->open; });
    --state_->waiting;
    state_->changed.notify_all();
  }
  void open() const {
    const std::lock_guard lock(state_->mutex);
    state_->open = true;
    state_->changed.notify_all();
  }
  int waiting() const {
    const std::lock_guard lock(state_->mutex);
    return state_->waiting;
  }
  /// Waits until at least `count` readers wait at the gate; 0: until none does.
  void await(int count) const {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait(lock, [&] { return count == 0 ? state_->waiting == 0 : state_->waiting >= count; });
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool open = false;
    int waiting = 0;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

/// Loads the rows of `dataset` in sequential order.
inline std::unique_ptr<Prefetcher> sequential(std::shared_ptr<const Dataset> dataset,
                                              const PrefetcherOptions& options) {
  const int64_t size = dataset->size();
  return Prefetcher::create(std::move(dataset), SequentialSampler(size), options).value();
}

/// The "y" of a batch.
inline std::vector<int64_t> labels(const Batch& batch) {
  const at::Tensor& y = batch["y"];
  return {y.const_data_ptr<int64_t>(), y.const_data_ptr<int64_t>() + y.numel()};
}

inline void append(std::vector<int64_t>& rows, const std::vector<int64_t>& more) {
  rows.insert(rows.end(), more.begin(), more.end());
}

/// The rest of the epoch.
inline std::vector<int64_t> drain(Prefetcher& loader) {
  std::vector<int64_t> rows;
  while (auto batch = loader.next().value()) append(rows, labels(*batch));
  return rows;
}

inline std::vector<int64_t> range(int64_t begin, int64_t end) {
  std::vector<int64_t> rows;
  for (int64_t row = begin; row < end; ++row) rows.push_back(row);
  return rows;
}

}  // namespace trainkit::test
