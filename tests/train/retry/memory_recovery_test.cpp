// Work that runs out of memory: what is freed, and in which order.
#include "train/retry/memory_recovery.h"

#include <torch/torch.h>

#include "test_util.h"
#include "train/graph/step_graphs.h"
#include "train/no_work.h"

using namespace trainkit;
using trainkit::detail::MemoryRecovery;
using trainkit::detail::StepGraphs;
using trainkit::test::NoWork;

namespace {

std::unique_ptr<StepGraphs> graphs_with_one() {
  auto graphs = std::make_unique<StepGraphs>(std::make_unique<NoWork>());
  static_cast<void>(graphs->next({1}));
  graphs->captured(std::make_unique<NoWork::Done>());
  return graphs;
}

/// A stage that runs out of memory a number of times.
struct Stage {
  int failures;
  int calls = 0;
  void operator()() { TORCH_CHECK_WITH(OutOfMemoryError, ++calls > failures, "no memory"); }
};

}  // namespace

TEST_CASE("A stage that runs out of memory runs three times at most, the last time after release_memory",
          "[train][memory_recovery]") {
  int released = 0;
  MemoryRecovery memory(at::kCPU, [&] { return ++released > 0; });
  for (const auto& [failures, calls, releases] : {std::array{0, 1, 0}, {1, 2, 0}, {2, 3, 1}}) {
    released = 0;
    Stage stage{failures};
    memory.run([&] { stage(); });
    CHECK(stage.calls == calls);
    CHECK(released == releases);
  }
  Stage endless{100};
  CHECK_THROWS_AS(memory.run([&] { endless(); }), c10::OutOfMemoryError);
  CHECK(endless.calls == 3);
}

TEST_CASE("Graphs are dropped before release_memory is called", "[train][memory_recovery]") {
  int released = 0;
  MemoryRecovery memory(at::kCPU, [&] { return ++released > 0; });
  const auto graphs = graphs_with_one();
  memory.use_graphs(graphs.get());
  Stage stage{2};
  memory.run([&] { stage(); });
  CHECK_FALSE(graphs->holds_any());
  CHECK(graphs->reason() == "out of memory in a step that was not captured");
  CHECK(released == 0);
  CHECK_FALSE(memory.drop_graphs());
}

TEST_CASE("Another error, and one during a capture, is thrown at once", "[train][memory_recovery]") {
  MemoryRecovery memory(at::kCPU, nullptr);
  int calls = 0;
  CHECK_THROWS_AS(memory.run([&] {
    ++calls;
    TORCH_CHECK_VALUE(false, "not memory");
  }),
                  c10::ValueError);
  CHECK(calls == 1);
  memory.set_capturing(true);
  Stage stage{1};
  CHECK_THROWS_AS(memory.run([&] { stage(); }), c10::OutOfMemoryError);
  CHECK(stage.calls == 1);
}

TEST_CASE("A step is retried with freed graphs, else in smaller parts, else after release_memory",
          "[train][memory_recovery]") {
  bool frees = true;
  int released = 0;
  MemoryRecovery memory(at::kCPU, [&] {
    ++released;
    return frees;
  });
  const auto graphs = graphs_with_one();
  memory.use_graphs(graphs.get());
  CHECK(memory.prepare_retry(/*can_split=*/true));
  CHECK(memory.has_freed());
  CHECK(memory.prepare_retry(/*can_split=*/true));
  CHECK_FALSE(memory.has_freed());
  CHECK(released == 0);
  CHECK(memory.prepare_retry(/*can_split=*/false));
  CHECK(memory.has_freed());
  CHECK(released == 1);
  frees = false;
  CHECK_FALSE(memory.prepare_retry(/*can_split=*/false));
  MemoryRecovery nothing(at::kCPU, nullptr);
  CHECK_FALSE(nothing.prepare_retry(/*can_split=*/false));
}
