#include "trainkit/train/checkpoint.h"

#include "test_util.h"
#include "trainkit/train/rng_state.h"

using namespace trainkit;

TEST_CASE("A checkpoint comes back as it was saved", "[train][checkpoint]") {
  test::TempDir dir;
  auto store = CheckpointStore::open(dir / "run").value();
  CHECK(absl::IsNotFound(store.latest().status()));
  const CheckpointContents contents{.model = {{"w", torch::randn({2, 3})}},
                                    .optimizer = {{"state.w.exp_avg", torch::randn({2, 3})}},
                                    .state = {{"step", int64_t{7}}}};
  REQUIRE(store.save(7, contents) == absl::OkStatus());
  CHECK(store.latest().value() == 7);
  const auto back = store.load(7).value();
  CHECK(torch::equal(back.model.at(0).second, contents.model.at(0).second));
  CHECK(torch::equal(back.optimizer.at(0).second, contents.optimizer.at(0).second));
  CHECK(get_state<int64_t>(back.state, "step").value() == 7);
}

TEST_CASE("The default generators draw the same numbers after their state is put back", "[train][rng_state]") {
  torch::manual_seed(3);
  const StateDict state = default_generator_state();
  const at::Tensor first = torch::randn({100});
  REQUIRE(load_default_generator_state(state) == absl::OkStatus());
  CHECK(torch::equal(torch::randn({100}), first));
}
