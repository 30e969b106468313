// When a step is captured, and the scalars that a captured step returns.
#include "train/graph/step_graphs.h"

#include <torch/torch.h>

#include "test_util.h"
#include "train/no_work.h"

using namespace trainkit;
using namespace trainkit::test;
using trainkit::detail::StepGraphs;
using Action = StepGraphs::Action;

namespace {

trainkit::detail::StepRecord record_of(uint64_t number) {
  return {.operations = {{"aten::mul", number}}, .obstacle = ""};
}

/// Takes `graphs` through warm-up and capture of `key`.
void capture(StepGraphs& graphs, const trainkit::detail::StepKey& key) {
  REQUIRE(graphs.next(key) == Action::kWarmUp);
  for (int i = 0; i < 2; ++i) {
    REQUIRE(graphs.next(key) == Action::kTrace);
    graphs.traced(record_of(1));
  }
  REQUIRE(graphs.next(key) == Action::kCapture);
  graphs.captured(std::make_unique<NoWork::Done>());
  graphs.replayed();
}

}  // namespace

TEST_CASE("A kind of step is captured after two eager steps made the same requests", "[train][step_graphs]") {
  StepGraphs graphs(std::make_unique<NoWork>());
  CHECK(graphs.next({1}) == Action::kWarmUp);
  CHECK(graphs.next({1}) == Action::kTrace);
  graphs.traced(record_of(1));
  CHECK(graphs.next({1}) == Action::kTrace);
  graphs.traced(record_of(2));  // with a one-time setup
  CHECK(graphs.next({1}) == Action::kTrace);
  graphs.traced(record_of(2));
  CHECK_FALSE(graphs.reason().empty());
  CHECK(graphs.next({1}) == Action::kCapture);
  graphs.captured(std::make_unique<NoWork::Done>());
  graphs.replayed();
  CHECK(graphs.next({1}) == Action::kReplay);
  graphs.replayed();
  CHECK(graphs.reason().empty());
  CHECK(graphs.steps() == 2);
  CHECK(graphs.next({2}) == Action::kWarmUp);  // another shape
  CHECK(graphs.next({1}) == Action::kReplay);
}

TEST_CASE("Capture is disabled for steps that always differ, with the operation that differs", "[train][step_graphs]") {
  StepGraphs graphs(std::make_unique<NoWork>(), {.patience = 4});
  for (uint64_t i = 0; graphs.active(); ++i) {
    REQUIRE(i < 10);
    if (graphs.next({1}) == Action::kTrace) graphs.traced(record_of(i));
  }
  CHECK(graphs.reason() == "steps differ: aten::mul has different shapes or numbers");
  CHECK(graphs.next({1}) == Action::kEager);
}

TEST_CASE("A captured step is periodically compared with an eager one, and dropped if they differ",
          "[train][step_graphs]") {
  StepGraphs graphs(std::make_unique<NoWork>(), {.check_every = 3});
  capture(graphs, {1});
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 3; ++i) CHECK(graphs.next({1}) == Action::kReplay);
    CHECK(graphs.next({1}) == Action::kTrace);
    CHECK(graphs.holds_any());
    graphs.traced(record_of(round == 0 ? 1 : 7));
  }
  CHECK_FALSE(graphs.active());
  CHECK_FALSE(graphs.holds_any());
  CHECK_THAT(graphs.reason(), Catch::StartsWith("steps differ"));
}

TEST_CASE("The least recently used kind of step is evicted; with too many kinds capture is disabled",
          "[train][step_graphs]") {
  StepGraphs graphs(std::make_unique<NoWork>(), {.kinds = 2, .patience = 5});
  capture(graphs, {1});
  capture(graphs, {2});
  CHECK(graphs.next({1}) == Action::kReplay);
  CHECK(graphs.next({3}) == Action::kWarmUp);
  CHECK(graphs.next({1}) == Action::kReplay);
  CHECK(graphs.next({2}) == Action::kWarmUp);
  for (int64_t shape = 10; shape < 20; ++shape) graphs.next({shape});
  CHECK_FALSE(graphs.active());
  CHECK_THAT(graphs.reason(), Catch::StartsWith("batches have too many different shapes"));
}

TEST_CASE("Graphs are captured again after their inputs have moved, a limited number of times",
          "[train][step_graphs]") {
  StepGraphs graphs(std::make_unique<NoWork>(), {.patience = 3});
  for (int i = 0; i < 3; ++i) {
    capture(graphs, {1});
    graphs.forget();
    CHECK_FALSE(graphs.holds_any());
  }
  CHECK(graphs.active());
  capture(graphs, {1});
  graphs.forget();
  CHECK_FALSE(graphs.active());
}

TEST_CASE("Packed scalars are unpacked with their types and shapes, in separate memory", "[train][step_graphs]") {
  trainkit::detail::ScalarPack pack;
  const at::Tensor half = torch::tensor(1.5).to(at::kHalf), whole = torch::tensor({int64_t{1} << 40});
  pack.pack({half, at::Tensor(), whole, torch::tensor(0.1, at::kDouble), torch::tensor(true)}, at::kCPU);
  const auto first = pack.unpack(), second = pack.unpack();
  CHECK(torch::equal(first[0], half));
  CHECK_FALSE(first[1].defined());
  CHECK(torch::equal(first[2], whole));
  CHECK(first[3].item<double>() == 0.1);
  CHECK(first[4].item<bool>());
  first[0].zero_();
  CHECK(torch::equal(second[0], half));
  CHECK_THROWS_WITH(trainkit::detail::ScalarPack().pack({torch::ones({2})}, at::kCPU),
                    Catch::Contains("expected a scalar"));
}
