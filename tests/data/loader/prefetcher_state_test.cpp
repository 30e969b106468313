/// Positions of a Prefetcher: seeking, and states that are saved and loaded.

#include <algorithm>
#include <atomic>

#include "data/loader/prefetcher_rows.h"
#include "data/test_datasets.h"
#include "test_util.h"
#include "trainkit/data/prefetcher.h"
#include "trainkit/data/tensor_dataset.h"

namespace trainkit {
namespace {

using namespace test;
using Catch::Contains;

std::vector<int64_t> place(const StateDict& state) {
  std::vector<int64_t> numbers;
  for (const char* name : {"epoch", "rows", "seed", "size"}) numbers.push_back(std::get<int64_t>(state.at(name)));
  return numbers;
}
std::vector<int64_t> place(const Prefetcher& loader) { return place(loader.state_dict()); }

TEST_CASE("Prefetcher seeks to any position without reading the rows before it", "[data][prefetcher]") {
  const int workers = GENERATE(0, 2);
  std::atomic<int64_t> reads{0};
  const int64_t size = int64_t{1} << 40;
  auto dataset = hooked(size, [&](const RowKey&) { ++reads; });
  const RandomSampler sampler(size, {.seed = 3});
  auto loader = Prefetcher::create(dataset, sampler, {.batch_size = 4, .num_workers = workers}).value();
  loader->seek(1000, size / 8);
  std::vector<int64_t> expected(4);
  sampler.fill(1000, size / 2, expected);
  CHECK(labels(*loader->next().value()) == expected);
  loader.reset();
  CHECK(reads <= 4 * 5);
}

TEST_CASE("Prefetcher resumes at any batch with other numbers of workers and other batch sizes", "[data][prefetcher]") {
  const RandomSampler sampler(50, {.seed = 7});
  const auto make = [&](int64_t batch_size, int workers) {
    return Prefetcher::create(numbers(50), sampler,
                              {.batch_size = batch_size, .num_workers = workers, .persistent_workers = true})
        .value();
  };
  std::vector<int64_t> whole;
  auto straight = make(6, 2);
  for (int epoch = 0; epoch < 3; ++epoch) append(whole, drain(*straight));

  auto first = make(6, 2);
  int64_t done = 0;
  for (int step = 0; step <= 18; ++step) {
    const StateDict state = first->state_dict();
    for (const auto& [batch_size, workers] : {std::pair<int64_t, int>{6, 0}, {6, 7}, {1, 2}, {11, 1}, {100, 2}}) {
      INFO("after " << step << " steps, batches of " << batch_size);
      auto second = make(batch_size, workers);
      REQUIRE(second->load_state_dict(state).ok());
      CHECK(second->epoch() == first->epoch());
      CHECK(std::get<int64_t>(second->state_dict().at("rows")) == std::get<int64_t>(state.at("rows")));
      std::vector<int64_t> rest;
      while (second->epoch() < 3) append(rest, drain(*second));
      CHECK(rest == std::vector<int64_t>(whole.begin() + done, whole.end()));
    }
    if (auto batch = first->next().value()) done += batch->size();
  }
}

TEST_CASE("Prefetcher resumes a sharded order with another number of ranks", "[data][prefetcher]") {
  const RandomSampler sampler(48, {.seed = 1});
  const auto make = [&](int64_t rank, int64_t world, int64_t batch_size) {
    return Prefetcher::create(numbers(48), DistributedSampler(sampler, {.rank = rank, .world_size = world}),
                              {.batch_size = batch_size, .num_workers = 1})
        .value();
  };
  // Global batch 12 for any number of ranks: each step has the same set of rows.
  auto one = make(0, 1, 12);
  StateDict state;
  std::vector<std::vector<int64_t>> steps;
  while (auto batch = one->next().value()) {
    steps.push_back(labels(*batch));
    std::sort(steps.back().begin(), steps.back().end());
    if (steps.size() == 2) state = one->state_dict();
  }
  for (const int64_t world : {2, 3, 4, 6}) {
    std::vector<std::vector<int64_t>> together(4);
    for (int64_t rank = 0; rank < world; ++rank) {
      auto loader = make(rank, world, 12 / world);
      REQUIRE(loader->load_state_dict(state).ok());
      CHECK(place(*loader) == place(state));
      for (size_t step = 2; step < 4; ++step) append(together[step], labels(*loader->next().value()));
      CHECK_FALSE(loader->next().value().has_value());
    }
    for (size_t step = 2; step < 4; ++step) {
      std::sort(together[step].begin(), together[step].end());
      CHECK(together[step] == steps[step]);
    }
  }
  auto seven = make(0, 7, 1);
  const absl::Status status = seven->load_state_dict(state);
  CHECK(exit_code(status) == ExitCode::kWeights);
  CHECK_THAT(std::string(status.message()), Contains("is not a multiple of the world size"));
}

TEST_CASE("An epoch ends at the same row for any number of ranks and any batch size", "[data][prefetcher]") {
  // 47 rows, of which 45 in batches of 5: 12 positions for each of 4 ranks, 15 for each of 3.
  const RandomSampler sampler(47, {.seed = 1});
  const auto make = [&](int64_t world, int64_t batch_size) {
    const DistributedSampler share(
        sampler, {.rank = world - 1, .world_size = world, .tail = UnevenTail::kPad, .multiple_of = 5});
    return Prefetcher::create(numbers(47), share, {.batch_size = batch_size}).value();
  };
  for (const auto& [from, batch] : {std::pair<int64_t, int64_t>{1, 5}, {2, 5}, {4, 3}, {3, 2}}) {
    auto loader = make(from, batch);
    while (!loader->at_epoch_end()) CHECK(loader->next().value().has_value());
    CHECK(loader->epoch() == 0);
    const StateDict state = loader->state_dict();
    for (const int64_t to : {1, 2, 3, 4}) {
      auto next = make(to, 2);
      REQUIRE(next->load_state_dict(state).ok());
      CHECK(next->at_epoch_end());
      CHECK_FALSE(next->next().value().has_value());
      CHECK(next->epoch() == 1);
      CHECK(!next->at_epoch_end());
    }
  }
}

TEST_CASE("Prefetcher refuses a state of other data and keeps its position", "[data][prefetcher]") {
  auto loader = Prefetcher::create(numbers(50), RandomSampler(50, {.seed = 7}), {.batch_size = 5}).value();
  loader->next().value();
  const StateDict good = loader->state_dict();
  const auto refused = [&](const std::string& name, StateValue value, const std::string& problem) {
    StateDict bad = good;
    bad[name] = std::move(value);
    const absl::Status status = loader->load_state_dict(bad);
    CHECK(exit_code(status) == ExitCode::kWeights);
    CHECK_THAT(std::string(status.message()), Contains(problem));
    CHECK(place(*loader) == place(good));
  };
  refused("size", int64_t{51}, "another data set");
  refused("seed", int64_t{8}, "another order of rows");
  refused("epoch", int64_t{-1}, "epoch: out of range");
  refused("rows", int64_t{-1}, "rows: out of range");
  refused("rows", int64_t{51}, "rows: out of range");
  refused("rows", std::string("many"), "rows");
  StateDict incomplete = good;
  incomplete.erase("epoch");
  CHECK(exit_code(loader->load_state_dict(incomplete)) == ExitCode::kWeights);
}

TEST_CASE("Prefetcher refuses a state of other rows with the same count, unless a bad row left it without a digest",
          "[data][prefetcher]") {
  const auto state_of = [](std::shared_ptr<const Dataset> dataset) {
    return Prefetcher::create(std::move(dataset), SequentialSampler(50), {.batch_size = 5}).value()->state_dict();
  };
  const auto tensors = [](int64_t last) {
    at::Tensor values = torch::arange(50);
    values[49] = last;
    return std::make_shared<TensorDataset>(std::vector<std::pair<std::string, at::Tensor>>{{"x", values}});
  };
  const StateDict good = state_of(tensors(49));
  CHECK(get_state<std::string>(good, "digest").value().size() == 64);
  auto same = Prefetcher::create(tensors(49), SequentialSampler(50), {.batch_size = 7}).value();
  CHECK(same->load_state_dict(good).ok());
  auto other = Prefetcher::create(tensors(50), SequentialSampler(50), {.batch_size = 5}).value();
  const absl::Status status = other->load_state_dict(good);
  CHECK(exit_code(status) == ExitCode::kWeights);
  CHECK_THAT(std::string(status.message()), Contains("made with other rows"));

  auto renamed = std::make_shared<TensorDataset>(
      std::vector<std::pair<std::string, at::Tensor>>{{"other name", torch::arange(1, 51)}});
  CHECK(Prefetcher::create(renamed, SequentialSampler(50), {.batch_size = 5}).value()->load_state_dict(good).ok());

  struct FirstIsBad final : Dataset {
    int64_t size() const override { return 50; }
    const std::vector<FieldSpec>& fields() const override { return specs; }
    void get(const RowKey& key, const BatchView& out, int64_t at) const override {
      if (key.index == 0) throw std::runtime_error("torn");
      *out.row<int64_t>(0, at) = key.index;
    }
    std::vector<FieldSpec> specs = {{"x", at::kLong, {}}};
  };
  const StateDict unknown = state_of(std::make_shared<FirstIsBad>());
  CHECK(get_state<std::string>(unknown, "digest").value().empty());
  CHECK(other->load_state_dict(unknown).ok());
}

}  // namespace
}  // namespace trainkit
