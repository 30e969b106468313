#include "trainkit/data/adapters.h"

#include <set>

#include "data/test_datasets.h"
#include "test_util.h"
#include "trainkit/data/tensor_dataset.h"

namespace trainkit {
namespace {

using namespace test;
using Catch::Contains;

std::vector<int64_t> read(const Dataset& dataset, const std::vector<int64_t>& indices) {
  std::vector<RowKey> keys;
  for (const int64_t index : indices) keys.push_back({.index = index, .epoch = 2, .seed = 1, .origin = index});
  std::vector<int64_t> rows(indices.size());
  const std::vector<BatchView::Field> fields = {{reinterpret_cast<std::byte*>(rows.data()), 8}};
  dataset.get_batch(keys, BatchView(fields, static_cast<int64_t>(rows.size())));
  return rows;
}

std::shared_ptr<const Dataset> numbers_from(int64_t begin, int64_t end) {
  return std::make_shared<TensorDataset>(TensorDataset({{"y", torch::arange(begin, end)}}));
}

TEST_CASE("MapDataset changes rows in place and to other fields", "[data][adapters]") {
  const auto doubled = std::make_shared<MapDataset>(
      numbers_from(0, 100), [](const RowKey&, const BatchView& row) { *row.row<int64_t>(0, 0) *= 2; });
  CHECK(read(*doubled, {3, 1, 99}) == std::vector<int64_t>{6, 2, 198});
  const MapDataset made(doubled, {{"sum", at::kLong, {}}},
                        [](const RowKey& key, const BatchView& in, const BatchView& out) {
                          *out.row<int64_t>(0, 0) = *in.row<int64_t>(0, 0) + key.epoch * 1000;
                        });
  CHECK(made.fields() == std::vector<FieldSpec>{{"sum", at::kLong, {}}});
  CHECK(read(made, {3, 1}) == std::vector<int64_t>{2006, 2002});
  CHECK_THROWS_AS(MapDataset(nullptr, [](const RowKey&, const BatchView&) {}), c10::ValueError);
}

TEST_CASE("MapDataset refuses an empty function and a field name that occurs twice", "[data][adapters]") {
  CHECK_THROWS_AS(MapDataset(numbers_from(0, 3), MapDataset::InPlace()), c10::ValueError);
  CHECK_THROWS_AS(MapDataset(numbers_from(0, 3), {{"x"}}, MapDataset::Function()), c10::ValueError);
  const auto nothing = [](const RowKey&, const BatchView&, const BatchView&) {};
  CHECK_THROWS_WITH(MapDataset(numbers_from(0, 3), {{"x"}, {"y"}, {"x"}}, nothing), Contains("duplicate field name x"));
}

TEST_CASE("MapDataset augments a row the same way for any number of workers, and differently in each epoch",
          "[data][adapters]") {
  auto noisy = std::make_shared<MapDataset>(numbers_from(0, 64), [](const RowKey& key, const BatchView& row) {
    *row.row<int64_t>(0, 0) += static_cast<int64_t>(key.random().below(1000)) * 1000;
  });
  std::vector<int64_t> expected;
  for (const int workers : {0, 1, 2, 7}) {
    auto loader = Prefetcher::create(noisy, SequentialSampler(64), {.batch_size = 5, .num_workers = workers}).value();
    const auto first = drain(*loader), second = drain(*loader);
    CHECK(first != second);
    if (expected.empty()) expected = first;
    CHECK(first == expected);
  }
}

/// The random number of each row of an epoch, in the order of the rows, for `workers` and `ranks`.
std::vector<int64_t> numbers_of(const std::shared_ptr<const Dataset>& rows, int workers = 0, int64_t ranks = 1) {
  std::vector<int64_t> all(static_cast<size_t>(rows->size()));
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const DistributedSamplerOptions share{.rank = rank, .world_size = ranks, .tail = UnevenTail::kUneven};
    auto loader = Prefetcher::create(rows, DistributedSampler(RandomSampler(rows->size(), {.seed = 3}), share),
                                     {.batch_size = 3, .num_workers = workers})
                      .value();
    while (auto batch = loader->next().value()) {
      const auto* number = (*batch)["number"].const_data_ptr<int64_t>();
      for (int64_t i = 0; i < batch->size(); ++i) all[static_cast<size_t>(batch->row_indices()[i])] = number[i];
    }
  }
  return all;
}

template <class... Parts>
std::shared_ptr<const Dataset> concat(Parts... parts) {
  return std::make_shared<ConcatDataset>(std::vector<std::shared_ptr<const Dataset>>{parts...});
}
std::shared_ptr<const Dataset> subset(std::shared_ptr<const Dataset> rows, std::vector<int64_t> indices) {
  return std::make_shared<Subset>(std::move(rows), std::move(indices));
}

TEST_CASE("A row that adapters show several times is augmented differently each time, the first time as always",
          "[data][adapters]") {
  const auto rows = number_rows(6);
  const std::vector<int64_t> plain = numbers_of(rows);
  const auto same = std::make_shared<MapDataset>(rows, [](const RowKey&, const BatchView&) {});
  const auto stacked =
      std::make_shared<StackDataset>(std::vector<std::shared_ptr<const Dataset>>{rows, numbers_from(0, 6)});
  const auto twice = concat(rows, rows), pair = subset(rows, {2, 4, 2});
  const std::vector<std::pair<std::string, std::shared_ptr<const Dataset>>> all = {
      {"repeated indices", subset(rows, {5, 1, 5, 5, 1})},
      {"concatenated with itself", concat(rows, rows, rows)},
      {"overlapping subsets", concat(subset(rows, {0, 1, 2}), subset(rows, {1, 2, 3}), subset(rows, {2, 3, 4}))},
      {"overlapping subsets, twice", concat(subset(rows, {0, 1}), subset(rows, {1}), subset(rows, {0, 1}))},
      {"a part of itself", concat(rows, pair, rows, pair)},
      {"other adapters", concat(rows, same, std::make_shared<CachedDataset>(same))},
      {"stacked", concat(stacked, stacked)},
      {"twice of twice", concat(twice, twice)},
      {"indices of twice", subset(twice, {0, 6, 0, 6, 3, 9, 9})},
      {"indices of indices", subset(subset(rows, {5, 5, 3}), {0, 1, 0, 1, 2, 2})},
      {"concatenated twice through others", concat(twice, subset(twice, {1, 7, 1}), concat(pair, rows))}};
  for (const auto& [name, repeated] : all) {
    INFO(name);
    const std::vector<int64_t> found = numbers_of(repeated);
    CHECK(std::set(found.begin(), found.end()).size() == found.size());
    CHECK(found.front() == plain[static_cast<size_t>(repeated->source(0).second)]);
    for (const int workers : {1, 3}) CHECK(numbers_of(repeated, workers) == found);
    for (const int64_t ranks : {2, 3}) CHECK(numbers_of(repeated, 1, ranks) == found);
  }
}

TEST_CASE("Rows that occur once keep their augmentation in every adapter", "[data][adapters]") {
  const auto rows = number_rows(6), others = number_rows(6);
  const std::vector<int64_t> plain = numbers_of(rows);
  const auto of = [&](std::vector<int64_t> indices) {
    std::vector<int64_t> expected;
    for (const int64_t index : indices) expected.push_back(plain[static_cast<size_t>(index)]);
    return expected;
  };
  CHECK(numbers_of(subset(rows, {5, 1, 3})) == of({5, 1, 3}));
  CHECK(numbers_of(concat(rows, others)) == of({0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5}));
  CHECK(numbers_of(concat(subset(rows, {4, 0}), subset(rows, {5, 1}))) == of({4, 0, 5, 1}));
  // A row that also occurs elsewhere changes no other row.
  const std::vector<int64_t> overlapping = numbers_of(concat(subset(rows, {4, 0}), subset(rows, {0, 1})));
  CHECK(overlapping[3] == plain[1]);
  CHECK(overlapping[2] != plain[0]);
}

TEST_CASE("The digest in a checkpoint does not depend on how often rows occur", "[data][adapters]") {
  struct Fifth final : Dataset {
    int64_t size() const override { return 3; }
    const std::vector<FieldSpec>& fields() const override { return rows->fields(); }
    void get(const RowKey& key, const BatchView& out, int64_t at) const override {
      RowKey inner = key;
      inner.index = 5;
      rows->get(inner, out, at);
    }
    std::shared_ptr<const Dataset> rows = number_rows(6);
  };
  const auto digest = [](std::shared_ptr<const Dataset> rows) {
    return std::get<std::string>(sequential(std::move(rows), {.batch_size = 1})->state_dict().at("digest"));
  };
  CHECK(digest(subset(number_rows(6), {5, 5, 5})) == digest(std::make_shared<Fifth>()));
}

TEST_CASE("Subset refuses rows out of range", "[data][adapters]") {
  CHECK(read(Subset(numbers_from(0, 10), {7, 7, 2}), {2, 0, 1}) == std::vector<int64_t>{2, 7, 7});
  CHECK_THROWS_WITH(Subset(numbers_from(0, 10), {3, 10}), Contains("index 10 is out of range for 10 rows"));
  CHECK_THROWS_AS(Subset(numbers_from(0, 10), {-1}), c10::IndexError);
  CHECK_THROWS_AS(Subset(nullptr, {}), c10::ValueError);
  CHECK(Subset(hooked(9, [](const RowKey&) {}), {8}).describe(0) == "file8.jpg");
}

TEST_CASE("ConcatDataset concatenates datasets", "[data][adapters]") {
  const ConcatDataset all({numbers_from(0, 3), numbers_from(0, 0), numbers_from(100, 104)});
  CHECK(all.size() == 7);
  CHECK(read(all, {6, 0, 1, 3, 2, 5}) == std::vector<int64_t>{103, 0, 1, 100, 2, 102});
  CHECK(ConcatDataset({hooked(2, [](const RowKey&) {}), hooked(9, [](const RowKey&) {})}).describe(4) == "file2.jpg");
  CHECK_THROWS_AS(ConcatDataset({}), c10::ValueError);
  CHECK_THROWS_AS(ConcatDataset({numbers_from(0, 1), nullptr}), c10::ValueError);
  auto other = std::make_shared<TensorDataset>(TensorDataset({{"z", torch::arange(3)}}));
  CHECK_THROWS_WITH(ConcatDataset({numbers_from(0, 1), other}), Contains("the fields of dataset 1 differ"));
}

TEST_CASE("StackDataset joins the fields of each row, with the same random numbers", "[data][adapters]") {
  const auto images = std::make_shared<TensorDataset>(
      TensorDataset({{"image", torch::arange(40.).view({10, 2, 2})}, {"id", torch::arange(10)}}));
  const auto masks = std::make_shared<TensorDataset>(TensorDataset({{"mask", torch::arange(10, 20, torch::kByte)}}));
  const auto noise = [](const std::shared_ptr<const Dataset>& rows, const char* name) {
    return std::make_shared<MapDataset>(rows, std::vector<FieldSpec>{{name, at::kLong, {}}},
                                        [](const RowKey& key, const BatchView&, const BatchView& out) {
                                          *out.row<int64_t>(0, 0) = static_cast<int64_t>(key.random().below(1'000'000));
                                        });
  };
  const auto zipped = std::make_shared<StackDataset>(
      std::vector<std::shared_ptr<const Dataset>>{images, masks, noise(images, "first"), noise(masks, "second")});
  CHECK(zipped->size() == 10);
  REQUIRE(zipped->fields().size() == 5);
  auto loader = Prefetcher::create(zipped, RandomSampler(10, {.seed = 3}), {.batch_size = 4, .num_workers = 2}).value();
  int64_t rows = 0;
  while (auto batch = loader->next().value()) {
    const at::Tensor id = (*batch)["id"];
    CHECK(at::equal((*batch)["image"], torch::arange(40.).view({10, 2, 2}).index_select(0, id)));
    CHECK(at::equal((*batch)["mask"], (id + 10).to(at::kByte)));
    CHECK(at::equal((*batch)["first"], (*batch)["second"]));
    rows += batch->size();
  }
  CHECK(rows == 10);
  // Also within another adapter, whose views begin in the middle of a batch.
  const ConcatDataset twice({zipped, zipped});
  CHECK(twice.size() == 20);
  using List = std::vector<std::shared_ptr<const Dataset>>;
  CHECK_THROWS_AS(StackDataset(List{}), c10::ValueError);
  CHECK_THROWS_AS(StackDataset(List{images, nullptr}), c10::ValueError);
  CHECK_THROWS_WITH(StackDataset(List{images, numbers_from(0, 9)}), Contains("dataset 1 has 9 rows, dataset 0 has 10"));
  CHECK_THROWS_WITH(StackDataset(List{images, images}), Contains("two datasets have a field 'image'"));
}

TEST_CASE("CachedDataset reads each row once", "[data][adapters]") {
  std::vector<std::atomic<int>> reads(100);
  auto counted = hooked(100, [&](const RowKey& key) { ++reads[key.index]; });
  const auto cached = std::make_shared<CachedDataset>(counted);
  CHECK(read(*cached, {5, 7, 5}) == std::vector<int64_t>{5, 7, 5});
  CHECK(cached->cached_rows() == 2);
  CHECK(read(*cached, {7, 8, 5, 9}) == std::vector<int64_t>{7, 8, 5, 9});
  CHECK(cached->cached_rows() == 4);
  CHECK(reads[7] == 1);
  auto loader = Prefetcher::create(cached, RandomSampler(100), {.batch_size = 9, .num_workers = 3}).value();
  for (int epoch = 0; epoch < 4; ++epoch) {
    auto rows = drain(*loader);
    std::sort(rows.begin(), rows.end());
    CHECK(rows == range(0, 100));
  }
  CHECK(cached->cached_rows() == 100);
  CHECK(reads[50] == 1);  // each row is in one batch per epoch
  CHECK_THROWS_AS(CachedDataset(nullptr), c10::ValueError);
}

TEST_CASE("CachedDataset stays within its memory limit", "[data][adapters]") {
  std::atomic<int> reads{0};
  auto counted = hooked(100, [&](const RowKey&) { ++reads; });
  const CachedDataset cached(counted, {.max_bytes = 8 * 10 + 7});
  for (int again = 0; again < 3; ++again) CHECK(read(cached, range(0, 100)) == range(0, 100));
  CHECK(cached.cached_rows() == 10);
  CHECK(reads == 100 + 90 + 90);
}

TEST_CASE("CachedDataset keeps no row with a memory limit of 0", "[data][adapters]") {
  const CachedDataset cached(numbers_from(0, 3), {.max_bytes = 0});
  for (int again = 0; again < 2; ++again) CHECK(read(cached, {2, 0}) == std::vector<int64_t>{2, 0});
  CHECK(cached.cached_rows() == 0);
}

TEST_CASE("CachedDataset does not cache a row that could not be read", "[data][adapters]") {
  std::atomic<bool> broken{true};
  auto dataset = hooked(10, [&](const RowKey& key) {
    if (key.index == 4 && broken) throw std::runtime_error("not yet");
  });
  const CachedDataset cached(dataset);
  CHECK_THROWS(read(cached, {3, 4}));
  broken = false;
  CHECK(read(cached, {3, 4}) == std::vector<int64_t>{3, 4});
}

TEST_CASE("TensorDataset refuses tensors with different numbers of rows", "[data][tensor_dataset]") {
  CHECK_THROWS_AS(TensorDataset({}), c10::ValueError);
  CHECK_THROWS_WITH(TensorDataset({{"x", torch::zeros({3})}, {"y", torch::zeros({4})}}),
                    Contains("y must have 3 rows, got 4"));
  CHECK_THROWS_WITH(TensorDataset({{"x", torch::zeros({3})}, {"x", torch::zeros({3})}}),
                    Contains("duplicate tensor name x"));
  CHECK_THROWS_AS(TensorDataset({{"x", torch::tensor(1.0)}}), c10::ValueError);
  CHECK_THROWS_AS(TensorDataset({{"x", torch::zeros({3}, torch::kMeta)}}), c10::ValueError);
  const TensorDataset transposed({{"y", torch::arange(6).reshape({2, 3}).t().select(1, 1)}});
  CHECK(read(transposed, {2, 0}) == std::vector<int64_t>{5, 3});
}

TEST_CASE("TensorDataset has the values of a conjugate or negated view", "[data][tensor_dataset]") {
  const at::Tensor z = torch::complex(torch::ones({2}), torch::full({2}, 3.0)).conj(),
                   negated = at::_neg_view(torch::arange(1., 3.));
  REQUIRE(z.is_conj());
  REQUIRE(negated.is_neg());
  const auto rows = std::make_shared<TensorDataset>(TensorDataset({{"z", z}, {"negated", negated}}));
  const auto loader = sequential(rows, {.batch_size = 2});
  const Batch batch = *loader->next().value();
  CHECK(torch::equal(torch::view_as_real(batch["z"]), torch::tensor({{1.f, -3.f}, {1.f, -3.f}})));
  CHECK(torch::equal(batch["negated"], torch::tensor({-1.f, -2.f})));
}

TEST_CASE("row_tensor is a row of a field", "[data][dataset]") {
  const TensorDataset dataset({{"x", torch::arange(6, torch::kFloat).reshape({3, 2})}, {"y", torch::arange(3)}});
  CHECK(dataset.fields()[0].row_bytes() == 8);
  std::vector<float> memory(6);
  const std::vector<BatchView::Field> fields = {{reinterpret_cast<std::byte*>(memory.data()), 8}};
  row_tensor(BatchView(fields, 3), 0, dataset.fields()[0], 1).copy_(torch::tensor({4.0f, 5.0f}));
  CHECK(memory == std::vector<float>{0, 0, 4, 5, 0, 0});
}

}  // namespace
}  // namespace trainkit
