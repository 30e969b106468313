#pragma once
/// The contract of every Dataset in one call: check_dataset_contract(dataset).

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "test_util.h"
#include "trainkit/data/prefetcher.h"

namespace trainkit::test {

/// Memory for rows of a dataset, with every byte preset to `pattern`.
class RowBuffer {
 public:
  RowBuffer(const Dataset& dataset, int64_t rows, int pattern) : rows_(rows) {
    for (const FieldSpec& field : dataset.fields()) {
      memory_.emplace_back(rows * field.row_bytes(), std::byte(pattern));
      fields_.push_back({memory_.back().data(), field.row_bytes()});
    }
  }
  BatchView view() const { return BatchView(fields_, rows_); }
  /// The bytes of row `row`, field by field.
  std::string row(int64_t row) const {
    std::string bytes;
    for (const auto& [data, row_bytes] : fields_)
      bytes.append(reinterpret_cast<const char*>(data) + row * row_bytes, row_bytes);
    return bytes;
  }

 private:
  std::vector<std::vector<std::byte>> memory_;
  std::vector<BatchView::Field> fields_;
  int64_t rows_;
};

/// Row `key` of `dataset` from get, written over bytes of `pattern`.
inline std::string row_bytes(const Dataset& dataset, const RowKey& key, int pattern = 0) {
  const RowBuffer buffer(dataset, 1, pattern);
  dataset.get(key, buffer.view(), 0);
  return buffer.row(0);
}

inline std::vector<std::string> batch_bytes(const Dataset& dataset, std::span<const RowKey> keys, int pattern = 0) {
  const RowBuffer buffer(dataset, static_cast<int64_t>(keys.size()), pattern);
  dataset.get_batch(keys, buffer.view());
  std::vector<std::string> rows;
  for (size_t i = 0; i < keys.size(); ++i) rows.push_back(buffer.row(static_cast<int64_t>(i)));
  return rows;
}

/// All batches of `epochs` epochs as bytes.
inline std::vector<std::string> all_batches(Prefetcher& loader, int epochs) {
  std::vector<std::string> batches;
  for (int epoch = 0; epoch < epochs; ++epoch) {
    while (auto batch = loader.next().value()) {
      std::string& bytes = batches.emplace_back();
      for (const at::Tensor& tensor : batch->tensors()) {
        bytes.append(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
      }
    }
    batches.emplace_back("end of epoch");
  }
  return batches;
}

/// Fails the test case if `dataset` breaks the contract in data/dataset.h. Checks its fields; that a row depends only
/// on its key, not on the thread or the previous memory; that get_batch equals get; that no other memory is written;
/// that a Prefetcher delivers the same bytes for any number of workers. Reads each row a few dozen times, at most
/// `max_rows` rows.
inline void check_dataset_contract(std::shared_ptr<const Dataset> dataset, int64_t max_rows = 200) {
  REQUIRE(dataset != nullptr);
  const std::vector<FieldSpec> fields = dataset->fields();
  const int64_t size = dataset->size();
  REQUIRE(size >= 0);
  REQUIRE_FALSE(fields.empty());
  std::set<std::string> names;
  for (const FieldSpec& field : fields) {
    INFO("field " << field.name);
    CHECK_FALSE(field.name.empty());
    CHECK(names.insert(field.name).second);
    CHECK(std::all_of(field.shape.begin(), field.shape.end(), [](int64_t size) { return size >= 0; }));
  }
  if (size == 0) return;

  // Keys of rows from the whole range, unsorted, some of them twice.
  std::vector<RowKey> keys;
  const int64_t count = std::min(size, max_rows);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t index = (i * 7919 + 3) % count * (size / count);
    keys.push_back({.index = index, .epoch = i % 3, .seed = 11, .origin = index});
    if (i % 5 == 0) keys.push_back(keys.back());
  }

  std::vector<std::string> rows;
  for (const RowKey& key : keys) {
    INFO("row " << key.index << " of epoch " << key.epoch);
    rows.push_back(row_bytes(*dataset, key, 0x00));
    CHECK(row_bytes(*dataset, key, 0xff) == rows.back());  // every byte is written, with the same value
    dataset->prefetch(key.index);
    CHECK(dataset->describe(key.index) == dataset->describe(key.index));
  }
  CHECK(batch_bytes(*dataset, keys, 0x00) == rows);
  CHECK(batch_bytes(*dataset, keys, 0xff) == rows);
  CHECK(batch_bytes(*dataset, std::span(keys).first(1), 0xff).front() == rows.front());
  CHECK(batch_bytes(*dataset, {}).empty());

  {  // only the requested rows are written
    const RowBuffer buffer(*dataset, 5, 0x5a);
    const std::string untouched = buffer.row(0);
    dataset->get(keys[0], buffer.view(), 1);
    dataset->get_batch(std::span(keys).first(1), buffer.view().slice(3, 1));
    CHECK(buffer.row(0) == untouched);
    CHECK(buffer.row(1) == rows[0]);
    CHECK(buffer.row(2) == untouched);
    CHECK(buffer.row(3) == rows[0]);
    CHECK(buffer.row(4) == untouched);
  }
  {  // from several threads at once
    std::vector<std::vector<std::string>> seen(4);
    std::vector<std::thread> threads;
    for (auto& mine : seen) threads.emplace_back([&] { mine = batch_bytes(*dataset, keys); });
    for (auto& thread : threads) thread.join();
    for (const auto& each : seen) CHECK(each == rows);
  }
  CHECK(dataset->size() == size);
  CHECK((dataset->fields() == fields));

  std::vector<std::string> expected;
  for (const int workers : {0, 1, 2, 7}) {
    INFO(workers << " workers");
    auto loader = Prefetcher::create(
        dataset, RandomSampler(size, {.seed = 5}),
        {.batch_size = std::max<int64_t>(1, size / 9), .num_workers = workers, .persistent_workers = true});
    REQUIRE(loader.ok());
    const auto batches = all_batches(**loader, 2);
    if (expected.empty()) expected = batches;
    CHECK((batches == expected));
  }
}

}  // namespace trainkit::test
