/// Rows that cannot be read.

#include <absl/status/statusor.h>

#include <numeric>

#include "data/test_datasets.h"
#include "test_util.h"
#include "trainkit/core/error.h"
#include "trainkit/data/adapters.h"
#include "trainkit/data/prefetcher.h"
#include "trainkit/data/tensor_dataset.h"

namespace trainkit {
namespace {

using namespace test;
using Catch::Contains;

// Every fifth row throws.
std::shared_ptr<const Dataset> fifths(int64_t size) {
  return hooked(size, [](const RowKey& key) {
    if (key.index % 5 == 3) throw std::runtime_error("cannot decode " + std::to_string(key.index));
  });
}

std::vector<int64_t> without_fifths(const std::vector<int64_t>& order) {
  std::vector<int64_t> good;
  for (const int64_t row : order) {
    if (row % 5 != 3) good.push_back(row);
  }
  return good;
}

std::vector<int64_t> shuffled(int64_t size, int64_t epoch) {
  std::vector<int64_t> order(size);
  RandomSampler(size, {.seed = 7}).fill(epoch, 0, order);
  return order;
}

std::vector<int64_t> indices_of(const std::vector<BadSample>& bad) {
  std::vector<int64_t> indices;
  for (const auto& sample : bad) indices.push_back(sample.index);
  return indices;
}

TEST_CASE("Of 1,000 rows of which every fifth throws, 800 are delivered and 200 reported, for any number of workers",
          "[data][prefetcher]") {
  const int workers = GENERATE(0, 1, 2, 7);
  const int64_t batch_size = GENERATE(1, 7, 50, 1000);
  const bool persistent = GENERATE(true, false);
  auto loader = Prefetcher::create(fifths(1000), RandomSampler(1000, {.seed = 7}),
                                   {.batch_size = batch_size,
                                    .num_workers = workers,
                                    .persistent_workers = persistent,
                                    .on_error = OnError::kSkip})
                    .value();
  const auto order = shuffled(1000, 0);
  std::vector<int64_t> rows, indices, bad;
  while (auto batch = loader->next().value()) {
    append(rows, labels(*batch));
    indices.insert(indices.end(), batch->row_indices().begin(), batch->row_indices().end());
    CHECK(batch->size() > 0);
  }
  for (const int64_t row : order) {
    if (row % 5 == 3) bad.push_back(row);
  }
  CHECK(rows.size() == 800);
  CHECK(rows == without_fifths(order));
  CHECK(indices == rows);
  CHECK(indices_of(loader->bad_samples()) == bad);
  CHECK(loader->bad_samples().size() == 200);
  const BadSample first = loader->bad_samples().front();
  CHECK(first.name == "file" + std::to_string(first.index) + ".jpg");
  CHECK(first.cause == "cannot decode " + std::to_string(first.index));
  CHECK(first.epoch == 0);

  CHECK(drain(*loader) == without_fifths(shuffled(1000, 1)));
  CHECK(loader->bad_samples().size() == 200);  // each once
}

TEST_CASE("Prefetcher reports a row that cannot be read, and continues with the next batch", "[data][prefetcher]") {
  const int workers = GENERATE(0, 1, 2, 7);
  auto loader =
      Prefetcher::create(fifths(1000), SequentialSampler(1000), {.batch_size = 1, .num_workers = workers}).value();
  std::vector<int64_t> rows;
  int64_t errors = 0;
  for (;;) {
    auto batch = loader->next();
    if (!batch.ok()) {
      const int64_t row = errors++ * 5 + 3;
      CHECK(batch.status().code() == absl::StatusCode::kDataLoss);
      CHECK(exit_code(batch.status()) == ExitCode::kData);
      const auto error = error_of(batch.status()).value();
      CHECK(error.field == "row " + std::to_string(row));
      CHECK(error.where == "file" + std::to_string(row) + ".jpg");
      CHECK(error.problem == "cannot decode " + std::to_string(row));
      continue;
    }
    if (!batch->has_value()) break;
    append(rows, labels(**batch));
  }
  CHECK(errors == 200);
  CHECK(rows == without_fifths(range(0, 1000)));
  CHECK(loader->bad_samples().size() == 200);
}

TEST_CASE("A bad row is replaced by the next readable row of the order, so that batches stay full",
          "[data][prefetcher]") {
  const int workers = GENERATE(0, 1, 2, 7);
  const int64_t batch_size = GENERATE(1, 7, 50);
  auto dataset = hooked(100, [](const RowKey& key) {
    if (key.index % 10 >= 7) throw std::runtime_error("bad");
  });
  auto loader = Prefetcher::create(dataset, RandomSampler(100, {.seed = 7}),
                                   {.batch_size = batch_size, .num_workers = workers, .on_error = OnError::kReplace})
                    .value();
  const auto order = shuffled(100, 0);
  std::vector<int64_t> expected, bad;
  for (size_t i = 0; i < order.size(); ++i) {
    size_t at = i;
    while (order[at % 100] % 10 >= 7) ++at;
    expected.push_back(order[at % 100]);
    if (at != i) bad.push_back(order[i]);
  }
  std::vector<int64_t> rows, indices;
  while (auto batch = loader->next().value()) {
    CHECK((batch->size() == batch_size || rows.size() + batch->size() == 100));
    append(rows, labels(*batch));
    indices.insert(indices.end(), batch->row_indices().begin(), batch->row_indices().end());
  }
  CHECK(rows == expected);
  CHECK(indices == expected);
  auto found = indices_of(loader->bad_samples());
  std::sort(found.begin(), found.end());
  std::sort(bad.begin(), bad.end());
  CHECK(found == bad);
}

TEST_CASE("The replacement of a bad row has its own augmentation", "[data][prefetcher]") {
  const auto rows = std::make_shared<MapDataset>(number_rows(6), [](const RowKey& key, const BatchView&) {
    if (key.index == 3) throw std::runtime_error("damaged");
  });
  std::vector<int64_t> first;
  for (const int workers : {0, 2}) {
    auto loader = Prefetcher::create(rows, SequentialSampler(6),
                                     {.batch_size = 4, .num_workers = workers, .on_error = OnError::kReplace})
                      .value();
    std::vector<int64_t> found;
    while (auto batch = loader->next().value()) {
      const auto* number = (*batch)["number"].const_data_ptr<int64_t>();
      found.insert(found.end(), number, number + batch->size());
    }
    CHECK(std::set(found.begin(), found.end()).size() == 6);  // row 4 occurs twice
    if (first.empty()) first = found;
    CHECK(found == first);
  }
}

TEST_CASE("Prefetcher stops with an error if no row is left as a replacement", "[data][prefetcher]") {
  const int workers = GENERATE(0, 2);
  auto dataset = hooked(3000, [](const RowKey&) { throw std::runtime_error("all gone"); });
  auto loader = Prefetcher::create(dataset, SequentialSampler(3000),
                                   {.batch_size = 2, .num_workers = workers, .on_error = OnError::kReplace})
                    .value();
  const auto batch = loader->next();
  REQUIRE_FALSE(batch.ok());
  CHECK(batch.status().code() == absl::StatusCode::kDataLoss);
  CHECK_THAT(std::string(batch.status().message()),
             Contains("none of 1001 rows could be read, starting at position 0"));
  CHECK_THAT(error_text(batch.status()), Contains("all gone"));
}

TEST_CASE("More bad rows than max_bad_samples end the run", "[data][prefetcher]") {
  const int workers = GENERATE(0, 1, 2, 7);
  const OnError policy = GENERATE(OnError::kSkip, OnError::kReplace);
  auto loader = Prefetcher::create(fifths(100), SequentialSampler(100),
                                   {.batch_size = 10, .num_workers = workers, .on_error = policy, .max_bad_samples = 5})
                    .value();
  CHECK(loader->next().ok());  // 2 bad rows
  CHECK(loader->next().ok());  // 4
  for (int again = 0; again < 2; ++again) {
    const auto batch = loader->next();  // 6, and in every later call
    REQUIRE_FALSE(batch.ok());
    CHECK(batch.status().code() == absl::StatusCode::kDataLoss);
    CHECK(exit_code(batch.status()) == ExitCode::kData);
    CHECK_THAT(std::string(batch.status().message()),
               Contains("max_bad_samples") && Contains("row 28 (file28.jpg)") && Contains("at most 5"));
  }
  CHECK(indices_of(loader->bad_samples()) == std::vector<int64_t>{3, 8, 13, 18, 23, 28});
}

TEST_CASE("Bad rows that occur again in later epochs are not counted again", "[data][prefetcher]") {
  auto loader =
      Prefetcher::create(fifths(20), RandomSampler(20),
                         {.batch_size = 3, .num_workers = 2, .on_error = OnError::kSkip, .max_bad_samples = 4})
          .value();
  for (int epoch = 0; epoch < 5; ++epoch) CHECK(drain(*loader).size() == 16);
  CHECK(loader->bad_samples().size() == 4);
}

TEST_CASE("Ranks have equally many batches if one of them could not read any row of a batch", "[data][prefetcher]") {
  const int workers = GENERATE(0, 2);
  // Two ranks with batches of 2 of 16 rows: rank 0 reads 0 2, 4 6, 8 10, 12 14; its second batch is lost.
  const auto dataset = hooked(16, [](const RowKey& key) {
    if (key.index == 4 || key.index == 6 || key.index == 13) throw std::runtime_error("unreadable");
  });
  std::vector<std::vector<int64_t>> sizes(2);
  for (int64_t rank : {0, 1}) {
    auto loader =
        Prefetcher::create(dataset, DistributedSampler(SequentialSampler(16), {.rank = rank, .world_size = 2}),
                           {.batch_size = 2, .num_workers = workers, .on_error = OnError::kSkip})
            .value();
    while (auto batch = loader->next().value()) sizes[static_cast<size_t>(rank)].push_back(batch->size());
  }
  CHECK(sizes[0] == std::vector<int64_t>{2, 0, 2, 2});
  CHECK(sizes[1] == std::vector<int64_t>{2, 2, 2, 1});
}

TEST_CASE("Padding rows that cannot be read are not counted as padding", "[data][prefetcher]") {
  // Rank 3 of 4 reads rows 3, 7 and, as padding, 1.
  const int64_t bad = GENERATE(1, 7);
  const auto dataset = hooked(10, [&](const RowKey& key) {
    if (key.index == bad) throw std::runtime_error("unreadable");
  });
  const DistributedSampler share(SequentialSampler(10), {.rank = 3, .world_size = 4, .tail = UnevenTail::kPad});
  auto loader = Prefetcher::create(dataset, share, {.batch_size = 3, .on_error = OnError::kSkip}).value();
  const Batch batch = *loader->next().value();
  CHECK(batch.size() == 2);
  CHECK(batch.padding_rows() == (bad == 1 ? 0 : 1));
}

// Reads whole batches and refuses those with a bad row.
class Bulk final : public Dataset {
 public:
  int64_t size() const override { return rows_->size(); }
  const std::vector<FieldSpec>& fields() const override { return rows_->fields(); }
  void get(const RowKey& key, const BatchView& out, int64_t at) const override { rows_->get(key, out, at); }
  void get_batch(std::span<const RowKey> keys, const BatchView& out) const override {
    for (size_t i = keys.size(); i-- > 0;) get(keys[i], out, static_cast<int64_t>(i));
  }

 private:
  std::shared_ptr<const Dataset> rows_ = fifths(100);
};

TEST_CASE("The readable rows of a batch that failed as a whole are the same", "[data][prefetcher]") {
  auto loader = Prefetcher::create(std::make_shared<Bulk>(), SequentialSampler(100),
                                   {.batch_size = 9, .num_workers = 2, .on_error = OnError::kSkip})
                    .value();
  CHECK(drain(*loader) == without_fifths(range(0, 100)));
  CHECK(loader->bad_samples().size() == 20);
  CHECK(loader->bad_samples().front().index == 3);
}

absl::Status next_status(std::shared_ptr<const Dataset> dataset, std::shared_ptr<const Sampler> sampler) {
  return Prefetcher::create(std::move(dataset), std::move(sampler), {.batch_size = 2, .num_workers = 1})
      .value()
      ->next()
      .status();
}

TEST_CASE("An error that a dataset throws as a Status keeps its exit code, location and hint", "[data][prefetcher]") {
  auto dataset = hooked(4, [](const RowKey&) {
    throw absl::BadStatusOrAccess(to_status({.exit_code = ExitCode::kStorage,
                                             .id = "storage.io",
                                             .where = "/data/a.bin@0x10",
                                             .problem = "input/output error",
                                             .hint = "check the disk"}));
  });
  const auto status = next_status(dataset, std::make_shared<SequentialSampler>(4));
  const auto error = error_of(status).value();
  CHECK(error.exit_code == ExitCode::kStorage);
  CHECK(error.id == "storage.io");
  CHECK(error.where == "/data/a.bin@0x10");
  CHECK(error.field == "row 0");
  CHECK(error.hint == "check the disk");
}

TEST_CASE("Any exception of a dataset reaches the consumer as an error", "[data][prefetcher]") {
  const auto sampler = std::make_shared<SequentialSampler>(4);
  CHECK_THAT(std::string(next_status(hooked(4, [](const RowKey&) { throw 17; }), sampler).message()),
             Contains("row 0") && Contains("unknown type"));
  CHECK_THAT(
      std::string(
          next_status(hooked(4, [](const RowKey&) { TORCH_CHECK(false, "a shape is wrong"); }), sampler).message()),
      Contains("a shape is wrong"));
}

class BadSampler final : public Sampler {
 public:
  int64_t size() const override { return 4; }
  void fill(int64_t, int64_t, std::span<int64_t>) const override { throw std::logic_error("no order today"); }
};

TEST_CASE("An exception of a sampler reaches the consumer as an error with its location", "[data][prefetcher]") {
  const auto status = next_status(fifths(4), std::make_shared<BadSampler>());
  CHECK_THAT(std::string(status.message()), Contains("position 0 of epoch 0") && Contains("no order today"));
}

TEST_CASE("An exception of the sampler is an error of the caller's code that names the position",
          "[data][prefetcher]") {
  struct Broken final : Sampler {
    int64_t size() const override { return 8; }
    void fill(int64_t, int64_t begin, std::span<int64_t> out) const override {
      if (begin == 4) throw std::logic_error("no order");
      std::fill(out.begin(), out.end(), 0);
    }
  };
  auto loader = Prefetcher::create(fifths(3), Broken(), {.batch_size = 4, .num_workers = GENERATE(0, 2)}).value();
  REQUIRE(loader->next().ok());
  const absl::Status status = loader->next().status();
  CHECK(exit_code(status) == ExitCode::kUsage);
  CHECK(error_line(status) ==
        "error[user.exception] batch at position 4 of epoch 0: the sampler threw std::logic_error: no order");
}

/// Counts from `first`, for `size` positions.
class CountingSampler final : public Sampler {
 public:
  CountingSampler(int64_t size, int64_t first) : size_(size), first_(first) {}
  int64_t size() const override { return size_; }
  void fill(int64_t, int64_t begin, std::span<int64_t> out) const override {
    std::iota(out.begin(), out.end(), first_ + begin);
  }

 private:
  int64_t size_, first_;
};

TEST_CASE("A sampler's index outside the dataset is an error that names it, whatever on_error is",
          "[data][prefetcher]") {
  const int workers = GENERATE(0, 2);
  const auto on_error = GENERATE(OnError::kFail, OnError::kSkip, OnError::kReplace);
  const PrefetcherOptions options = {.batch_size = 8, .num_workers = workers, .on_error = on_error};
  const auto rows = std::make_shared<TensorDataset>(TensorDataset({{"y", torch::arange(10)}}));
  auto loader = Prefetcher::create(rows, SequentialSampler(16), options).value();
  CHECK(labels(**loader->next()) == range(0, 8));
  const absl::Status status = loader->next().status();
  CHECK(status.code() == absl::StatusCode::kOutOfRange);
  CHECK(exit_code(status) == ExitCode::kUsage);
  CHECK(error_line(status) ==
        "error[data.index] batch at position 8 of epoch 0: the sampler returned an index that is out of range for the "
        "dataset (got '10', expected 0 <= index < 10)");
  CHECK_FALSE(loader->next().value().has_value());
  CHECK(loader->bad_samples().empty());

  loader = Prefetcher::create(rows, CountingSampler(4, -1), options).value();
  CHECK_THAT(error_line(loader->next().status()), Contains("(got '-1', expected 0 <= index < 10)"));
}

TEST_CASE("A sampler's index outside the dataset is an error in the search for a replacement too",
          "[data][prefetcher]") {
  const auto rows = hooked(4, [](const RowKey&) { throw std::runtime_error("unreadable"); });
  auto loader =
      Prefetcher::create(rows, SequentialSampler(6), {.batch_size = 4, .on_error = OnError::kReplace}).value();
  const absl::Status status = loader->next().status();
  CHECK_THAT(error_line(status), Contains("error[data.index] batch at position 4 of epoch 0") && Contains("got '4'"));
}

TEST_CASE("A sampler whose size grows is an error", "[data][prefetcher]") {
  struct Growing final : Sampler {
    int64_t size() const override { return *rows; }
    void fill(int64_t, int64_t, std::span<int64_t> out) const override { std::fill(out.begin(), out.end(), 0); }
    std::shared_ptr<int64_t> rows = std::make_shared<int64_t>(2);
  };
  const Growing sampler;
  auto loader = Prefetcher::create(fifths(3), sampler, {.batch_size = 4}).value();
  *sampler.rows = 4;
  CHECK_THAT(error_line(loader->next().status()), Contains("the sampler") && Contains("size() has changed"));
}

}  // namespace
}  // namespace trainkit
