#include "trainkit/data/sampler.h"

#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "contract/sampler_contract.h"
#include "data/test_datasets.h"
#include "test_util.h"

namespace trainkit {
namespace {

using Catch::Contains;
using test::order_of;

TEST_CASE("RandomSampler orders differ by seed and by epoch", "[data][sampler]") {
  const auto order = order_of(RandomSampler(100, {.seed = 1}), 0);
  CHECK(order != order_of(RandomSampler(100, {.seed = 2}), 0));
  CHECK(order != order_of(RandomSampler(100, {.seed = 1}), 1));
  CHECK(order == order_of(RandomSampler(100, {.seed = 1}), 0));
  CHECK(RandomSampler(100, {.seed = 77}).seed() == 77);
}

TEST_CASE("RandomSampler's order is the one that checkpoints of earlier versions rely on", "[data][sampler]") {
  // Changing these numbers changes the rows that a resumed run reads: a breaking change.
  std::vector<int64_t> small(5), large(5);
  RandomSampler(10, {.seed = 7}).fill(3, 2, small);
  RandomSampler(1'000'000, {.seed = 7}).fill(3, 500'000, large);
  CHECK(small == std::vector<int64_t>{0, 8, 6, 1, 3});
  CHECK(large == std::vector<int64_t>{179152, 274003, 435200, 949130, 394046});
}

TEST_CASE("WeightedRandomSampler draws rows in proportion to their weights", "[data][sampler]") {
  const std::vector<double> weights = {1, 0, 3, 6, 0};
  const WeightedRandomSampler sampler(weights, {.num_samples = 100'000, .seed = 3});
  CHECK(sampler.size() == 100'000);
  std::vector<int64_t> counts(5);
  for (const int64_t row : order_of(sampler, 4)) ++counts[row];
  CHECK(counts[1] == 0);
  CHECK(counts[4] == 0);
  // Five standard deviations of a binomial count.
  for (const size_t i : {0, 2, 3}) {
    const double p = weights[i] / 10;
    CHECK(std::abs(counts[i] - 100'000 * p) < 5 * std::sqrt(100'000 * p * (1 - p)));
  }
}

TEST_CASE("WeightedRandomSampler draws a single row if only one has a weight", "[data][sampler]") {
  std::vector<double> weights(1001, 0.0);
  weights[500] = 1e-300;
  for (const int64_t row : order_of(WeightedRandomSampler(weights, {.num_samples = 5000}), 0)) REQUIRE(row == 500);
}

TEST_CASE("WeightedRandomSampler never draws a row of weight 0, however small the other weights are",
          "[data][sampler]") {
  std::vector<int64_t> rows(200);
  WeightedRandomSampler({0, 1e-310, 0}, {.num_samples = 200}).fill(0, 0, rows);
  CHECK(rows == std::vector<int64_t>(200, 1));
  WeightedRandomSampler({0, 1e-308, 0, 1e-308}, {.num_samples = 200}).fill(0, 0, rows);
  CHECK(std::set(rows.begin(), rows.end()) == std::set<int64_t>{1, 3});
}

TEST_CASE("WeightedRandomSampler draws as many rows as there are weights by default", "[data][sampler]") {
  CHECK(WeightedRandomSampler(std::vector<double>{1, 2, 3}).size() == 3);
  CHECK(WeightedRandomSampler({0.5, 2, 3}).size() == 3);
  const WeightedRandomSampler listed({1, 0, 3}, {.num_samples = 50, .seed = 2});
  CHECK(order_of(listed, 1) ==
        order_of(WeightedRandomSampler(std::vector<double>{1, 0, 3}, {.num_samples = 50, .seed = 2}), 1));
}

TEST_CASE("WeightedRandomSampler refuses invalid weights", "[data][sampler]") {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  CHECK_THROWS_AS(WeightedRandomSampler(std::vector<double>{}), c10::ValueError);
  CHECK_THROWS_WITH(WeightedRandomSampler(std::vector<double>{1, -2}),
                    Contains("weight 1 must be finite and >= 0, got -2"));
  CHECK_THROWS_AS(WeightedRandomSampler(std::vector<double>{1, nan}), c10::ValueError);
  CHECK_THROWS_AS(WeightedRandomSampler(std::vector<double>{1, inf}), c10::ValueError);
  CHECK_THROWS_WITH(WeightedRandomSampler(std::vector<double>{0, 0}), Contains("finite sum > 0"));
  CHECK_THROWS_AS(WeightedRandomSampler(std::vector<double>{1e308, 1e308}), c10::ValueError);
  CHECK_THROWS_AS(WeightedRandomSampler(std::vector<double>{1}, {.num_samples = -1}), c10::ValueError);
}

TEST_CASE("Samplers give rows of every position at the edge of every width", "[data][sampler]") {
  const int64_t size = GENERATE((int64_t{1} << 31), (int64_t{1} << 32) - 1, (int64_t{1} << 32), (int64_t{1} << 32) + 1,
                                (int64_t{1} << 53), std::numeric_limits<int64_t>::max());
  INFO("size " << size);
  const std::vector<int64_t> sizes = {size};
  const std::vector<std::shared_ptr<const Sampler>> samplers = {
      std::make_shared<SequentialSampler>(size), std::make_shared<RandomSampler>(size, RandomSamplerOptions{.seed = 3}),
      mixture_sampler(sizes, std::vector<double>{1}, {.seed = 3}),
      mixture_sampler(std::vector<int64_t>{5, 7}, std::vector<double>{0.3, 0.7}, {.num_samples = size, .seed = 3}),
      std::make_shared<WeightedRandomSampler>(std::vector<double>{1, 2},
                                              WeightedRandomSamplerOptions{.num_samples = size})};
  for (size_t i = 0; i < samplers.size(); ++i) {
    INFO("sampler " << i);
    const auto& sampler = samplers[i];
    CHECK(sampler->size() == size);
    const int64_t rows = i < 3 ? size : i == 3 ? 12 : 2;
    for (const int64_t world : {1, 3}) {
      const DistributedSampler share(sampler, {.rank = world - 1, .world_size = world, .tail = UnevenTail::kPad});
      for (const int64_t begin : {int64_t{0}, share.size() - 10}) {
        std::vector<int64_t> found(10);
        share.fill(5, begin, found);
        CHECK(std::all_of(found.begin(), found.end(), [&](int64_t row) { return 0 <= row && row < rows; }));
        if (i < 3 && share.padding() == 0) CHECK(std::set(found.begin(), found.end()).size() == 10);
        for (int64_t p = begin; p < begin + 10; ++p) CHECK(share.draw(p) >= 0);
      }
    }
  }
}

TEST_CASE("Samplers refuse a negative size", "[data][sampler]") {
  CHECK_THROWS_AS(SequentialSampler(-1), c10::ValueError);
  CHECK_THROWS_AS(RandomSampler(-1), c10::ValueError);
}

std::vector<int64_t> sizes_of(int64_t rows, int64_t world, UnevenTail tail) {
  std::vector<int64_t> sizes;
  for (int64_t rank = 0; rank < world; ++rank) {
    sizes.push_back(
        DistributedSampler(SequentialSampler(rows), {.rank = rank, .world_size = world, .tail = tail}).size());
  }
  return sizes;
}

TEST_CASE("DistributedSampler drops or pads the remainder, or leaves it uneven", "[data][sampler]") {
  CHECK(sizes_of(10, 4, UnevenTail::kDrop) == std::vector<int64_t>{2, 2, 2, 2});
  CHECK(sizes_of(10, 4, UnevenTail::kPad) == std::vector<int64_t>{3, 3, 3, 3});
  CHECK(sizes_of(10, 4, UnevenTail::kUneven) == std::vector<int64_t>{3, 3, 2, 2});
  CHECK(sizes_of(8, 4, UnevenTail::kPad) == std::vector<int64_t>{2, 2, 2, 2});
  CHECK(sizes_of(2, 4, UnevenTail::kDrop) == std::vector<int64_t>{0, 0, 0, 0});
}

TEST_CASE("DistributedSampler reports the rows that it repeats", "[data][sampler]") {
  const auto share = [](int64_t rows, int64_t rank, int64_t world) {
    return DistributedSampler(SequentialSampler(rows), {.rank = rank, .world_size = world, .tail = UnevenTail::kPad});
  };
  CHECK(order_of(share(10, 1, 4), 0) == std::vector<int64_t>{1, 5, 9});
  CHECK(share(10, 1, 4).padding() == 0);
  CHECK(order_of(share(10, 2, 4), 0) == std::vector<int64_t>{2, 6, 0});
  CHECK(share(10, 2, 4).padding() == 1);
  CHECK(order_of(share(10, 3, 4), 0) == std::vector<int64_t>{3, 7, 1});
  // More ranks than rows: each rank still has one row, marked as a repetition.
  CHECK(order_of(share(2, 5, 7), 0) == std::vector<int64_t>{1});
  CHECK(share(2, 5, 7).padding() == 1);
  // Without padding every row occurs once.
  std::vector<int64_t> rows;
  for (int64_t rank = 0; rank < 7; ++rank) {
    const auto sampler = share(100, rank, 7);
    auto order = order_of(sampler, 0);
    order.resize(order.size() - sampler.padding());
    rows.insert(rows.end(), order.begin(), order.end());
  }
  std::sort(rows.begin(), rows.end());
  CHECK(rows.size() == 100);
  CHECK(std::adjacent_find(rows.begin(), rows.end()) == rows.end());
}

TEST_CASE("DistributedSampler shares the same rows of an epoch for any number of ranks", "[data][sampler]") {
  // 103 rows in batches of 5: one process has 100 rows with drop_last, and so has any number of ranks.
  const RandomSampler order(103, {.seed = 3});
  std::vector<int64_t> whole = order_of(order, 2);
  whole.resize(100);
  for (const int64_t world : {1, 2, 3, 4, 7, 64}) {
    std::vector<int64_t> together(100, -1);
    for (int64_t rank = 0; rank < world; ++rank) {
      const DistributedSampler share(order,
                                     {.rank = rank, .world_size = world, .tail = UnevenTail::kPad, .multiple_of = 5});
      CHECK(share.epoch_size() == 100);
      CHECK(share.size() == (100 + world - 1) / world);
      const auto rows = order_of(share, 2);
      for (int64_t i = 0; i < share.size() - share.padding(); ++i) together[i * world + rank] = rows[i];
      for (const int64_t row : rows) CHECK(std::find(whole.begin(), whole.end(), row) != whole.end());
    }
    CHECK(together == whole);
  }
  CHECK(DistributedSampler(order, {.rank = 1, .world_size = 4}).epoch_size() == 100);
  CHECK(DistributedSampler(order, {.rank = 0, .world_size = 4, .tail = UnevenTail::kUneven}).epoch_size() == 103);
  CHECK(DistributedSampler(order, {.tail = UnevenTail::kPad, .multiple_of = 104}).size() == 0);
  CHECK(order.epoch_size() == 103);
  CHECK_THROWS_AS(DistributedSampler(order, {.multiple_of = 0}), c10::ValueError);
}

TEST_CASE("DistributedSampler refuses ranks out of range", "[data][sampler]") {
  CHECK_THROWS_AS(DistributedSampler(SequentialSampler(3), {.rank = 2, .world_size = 2}), c10::ValueError);
  CHECK_THROWS_AS(DistributedSampler(SequentialSampler(3), {.rank = -1, .world_size = 2}), c10::ValueError);
  CHECK_THROWS_AS(DistributedSampler(SequentialSampler(3), {.rank = 0, .world_size = 0}), c10::ValueError);
  CHECK_THROWS_AS(DistributedSampler(std::shared_ptr<const Sampler>(), {}), c10::ValueError);
  const DistributedSampler once(SequentialSampler(8), {.rank = 0, .world_size = 2});
  CHECK_THROWS_WITH(DistributedSampler(once, {.rank = 0, .world_size = 2}), Contains("distributed already"));
}

/// Positions of an epoch that belong to each dataset.
std::vector<int64_t> counts_of(std::span<const int64_t> order, const std::vector<int64_t>& sizes) {
  std::vector<int64_t> counts(sizes.size());
  for (int64_t row : order) {
    size_t i = 0;
    while (row >= sizes[i]) row -= sizes[i++];
    ++counts[i];
  }
  return counts;
}

TEST_CASE("A mixture satisfies the contract of a sampler", "[data][sampler]") {
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{1000, 300}, {7, 1, 500}, {40}}) {
    std::vector<double> weights(sizes.size());
    for (size_t i = 0; i < weights.size(); ++i) weights[i] = 1.0 / static_cast<double>(i + 1);
    const auto sampler = mixture_sampler(sizes, weights, {.seed = 5});
    test::check_sampler_contract(sampler, std::accumulate(sizes.begin(), sizes.end(), int64_t{0}),
                                 {.each_row_once = false});
    CHECK(sampler->seed() == 5);
  }
}

TEST_CASE("A mixture has the share of each dataset in every epoch, and about it in every part of one",
          "[data][sampler]") {
  const std::vector<int64_t> sizes = {5000, 100, 2900};
  const std::vector<double> weights = {3, 1.5, 0.5};
  const auto sampler = mixture_sampler(sizes, weights, {.seed = 5});
  REQUIRE(sampler->size() == 8000);
  for (const int64_t epoch : {0, 1, 77}) {
    const auto order = order_of(*sampler, epoch);
    CHECK(counts_of(order, sizes) == std::vector<int64_t>{4800, 2400, 800});
    for (size_t begin = 0; begin < 8000; begin += 1000) {
      const auto counts = counts_of(std::span(order).subspan(begin, 1000), sizes);
      // Five standard deviations of a binomial count, which is wider than this one.
      for (size_t i = 0; i < 3; ++i) {
        const double p = weights[i] / 5;
        CHECK(std::abs(static_cast<double>(counts[i]) - 1000 * p) < 5 * std::sqrt(1000 * p * (1 - p)));
      }
    }
  }
  CHECK(counts_of(order_of(*mixture_sampler(sizes, weights, {.num_samples = 11}), 3), sizes) ==
        std::vector<int64_t>{7, 3, 1});
}

TEST_CASE("At the end of every epoch a mixture has shown all rows of a dataset equally often or once more",
          "[data][sampler]") {
  const std::vector<int64_t> sizes = {700, 30};
  const auto sampler = mixture_sampler(sizes, std::vector<double>{1, 1}, {.seed = 5});  // 365 rows of each per epoch
  std::map<int64_t, int64_t> seen;
  for (int64_t epoch = 0; epoch < 10; ++epoch) {
    for (const int64_t row : order_of(*sampler, epoch)) ++seen[row];
    const int64_t draws = 365 * (epoch + 1);
    for (size_t i = 0; i < 2; ++i) {
      for (int64_t row = i == 0 ? 0 : 700; row < (i == 0 ? 700 : 730); ++row) {
        const int64_t times = seen[row];
        CHECK((times == draws / sizes[i] || times == (draws + sizes[i] - 1) / sizes[i]));
      }
    }
  }
}

TEST_CASE("A mixture gives the same rows for any number of workers and ranks, and from the middle of an epoch",
          "[data][sampler]") {
  const std::vector<int64_t> sizes = {40, 25};
  const auto sampler = mixture_sampler(sizes, std::vector<double>{0.3, 0.7}, {.seed = 9});
  const auto read = [&](std::shared_ptr<const Sampler> order, int workers, int64_t begin) {
    auto loader = Prefetcher::create(test::number_rows(65), order, {.batch_size = 4, .num_workers = workers}).value();
    loader->seek(2, begin);
    std::vector<std::pair<int64_t, int64_t>> all;  // row and random number, by position
    while (auto batch = loader->next().value()) {
      const auto* number = (*batch)["number"].const_data_ptr<int64_t>();
      for (int64_t i = 0; i < batch->size(); ++i) all.emplace_back(batch->row_indices()[i], number[i]);
    }
    return all;
  };
  const auto whole = read(sampler, 0, 0);
  REQUIRE(whole.size() == 65);
  for (const int workers : {0, 1, 4}) {
    CHECK(read(sampler, workers, 0) == whole);
    CHECK(read(sampler, workers, 7) == std::vector(whole.begin() + 28, whole.end()));
    for (const int64_t ranks : {1, 2, 3}) {
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const auto share = read(
            std::make_shared<DistributedSampler>(sampler, DistributedSamplerOptions{.rank = rank, .world_size = ranks}),
            workers, 0);
        for (size_t i = 0; i < share.size(); ++i) CHECK(share[i] == whole[i * ranks + rank]);
      }
    }
  }
}

TEST_CASE("mixture_sampler refuses empty datasets and invalid weights", "[data][sampler]") {
  const auto make = [](std::vector<int64_t> sizes, std::vector<double> weights, int64_t samples = 0) {
    return mixture_sampler(sizes, weights, {.num_samples = samples});
  };
  const double inf = std::numeric_limits<double>::infinity();
  CHECK_THROWS_AS(make({}, {}), c10::ValueError);
  CHECK_THROWS_AS(make({1, 2}, {1}), c10::ValueError);
  CHECK_THROWS_AS(make({1, 0}, {1, 1}), c10::ValueError);
  CHECK_THROWS_AS(make({1, 2}, {1, 0}), c10::ValueError);
  CHECK_THROWS_AS(make({1, 2}, {1, -1}), c10::ValueError);
  CHECK_THROWS_AS(make({1, 2}, {1, inf}), c10::ValueError);
  CHECK_THROWS_AS(make({1, 2}, {1e308, 1e308}), c10::ValueError);
  CHECK_THROWS_AS(make({1, 2}, {1, 1}, -1), c10::ValueError);
}

TEST_CASE("Repeated draws of a row have different random numbers, equal for any number of workers and ranks",
          "[data][sampler]") {
  const auto numbers = [](auto sampler, int workers) {
    std::vector<std::pair<int64_t, uint64_t>> all;  // row and random number, by position
    const auto data = test::number_rows(4);
    auto loader = Prefetcher::create(data, sampler, {.batch_size = 3, .num_workers = workers}).value();
    while (auto batch = loader->next().value()) {
      const auto* number = (*batch)["number"].template const_data_ptr<int64_t>();
      for (int64_t i = 0; i < batch->size(); ++i) {
        all.emplace_back(batch->row_indices()[i], static_cast<uint64_t>(number[i]));
      }
    }
    return all;
  };
  const std::vector<double> weights = {1, 1, 5, 1};
  const WeightedRandomSampler repeats(weights, {.num_samples = 24, .seed = 3});
  const auto order = numbers(repeats, 0);
  const std::set<std::pair<int64_t, uint64_t>> different(order.begin(), order.end());
  CHECK(different.size() == order.size());
  CHECK(numbers(repeats, 3) == order);
  for (int64_t rank = 0; rank < 2; ++rank) {
    const auto share = numbers(DistributedSampler(repeats, {.rank = rank, .world_size = 2}), 2);
    REQUIRE(share.size() == 12);
    for (size_t i = 0; i < share.size(); ++i) CHECK(share[i] == order[2 * i + rank]);
  }
  // Without repeats the numbers depend on seed, epoch and row only. Saved runs count on them.
  for (const auto& [row, number] : numbers(RandomSampler(4, {.seed = 3}), 0)) {
    RandomStream expected(hash_key(3, 0, row));
    CHECK(number == expected());
  }
}

}  // namespace
}  // namespace trainkit
