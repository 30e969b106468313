#include "distributed/rank_threads.h"
#include "test_util.h"
#include "train/checkpoint/generators.h"
#include "trainkit/core/status.h"
#include "trainkit/train/checkpoint.h"

using namespace trainkit;
using test::on_ranks;

TEST_CASE("The default generators draw the same numbers after their state is restored", "[train][rng_state]") {
  torch::manual_seed(3);
  torch::randn({3});  // leaves half of a pair of normal numbers in the generator's state
  const StateDict state = default_generator_state();
  const auto draw = [] {
    return torch::cat({torch::randn({101}), torch::rand({7}), torch::randperm(9).to(torch::kFloat)});
  };
  const at::Tensor first = draw();
  CHECK_FALSE(torch::equal(draw(), first));
  REQUIRE(load_default_generator_state(state) == absl::OkStatus());
  CHECK(torch::equal(draw(), first));
}

TEST_CASE("A generator state that does not match is reported by name, and no generator changes", "[train][rng_state]") {
  torch::manual_seed(3);
  const StateDict good = default_generator_state();
  torch::randn({10});
  const StateDict before = default_generator_state();
  const at::Tensor cpu = std::get<at::Tensor>(good.at("cpu"));
  StateDict short_state = good, wrong_type = good, no_tensor = good;
  short_state["cpu"] = cpu.slice(0, 0, 100).clone();
  wrong_type["cpu"] = cpu.to(torch::kFloat);
  no_tensor["cpu"] = int64_t{3};
  const std::pair<const char*, StateDict> rows[] = {
      {"cpu", {}}, {"cpu", short_state}, {"cpu", wrong_type}, {"cpu", no_tensor}};
  for (const auto& [field, state] : rows) {
    const absl::Status status = load_default_generator_state(state);
    CAPTURE(status.ToString());
    CHECK(exit_code(status) == ExitCode::kWeights);
    CHECK(error_of(status)->field == field);
    CHECK(torch::equal(std::get<at::Tensor>(default_generator_state().at("cpu")),
                       std::get<at::Tensor>(before.at("cpu"))));
  }
}

TEST_CASE("Generator states of unused devices are mapped to the devices in use", "[train][rng_state]") {
  torch::manual_seed(3);
  StateDict state = default_generator_state();
  state["cuda.7"] = torch::zeros({16}, torch::kByte);
  const at::Tensor first = torch::randn({10});
  REQUIRE(load_default_generator_state(state) == absl::OkStatus());
  CHECK(torch::equal(torch::randn({10}), first));
}

TEST_CASE("A resumed rank draws from its own generator", "[train][rng_state][ranks]") {
  const auto state_of = [](uint64_t seed) { return at::make_generator<at::CPUGeneratorImpl>(seed).get_state(); };
  const StateDict saved = {{"rng.cpu", state_of(1)}, {"rng_ranks", at::stack({state_of(1), state_of(2)})}};
  at::Tensor loaded;
  const auto texts = on_ranks(2, [&](ProcessGroup& ranks) -> absl::Status {
    const DeviceReplicatorOptions options{.device = at::kCPU, .process_group = {&ranks, [](ProcessGroup*) {}}};
    TRAINKIT_ASSIGN_OR_RETURN(const auto devices,
                              DeviceReplicator::create([] { return torch::nn::Linear(1, 1); }, options));
    if (ranks.rank() == 0) return absl::OkStatus();  // both have the generator of this process
    TRAINKIT_RETURN_IF_ERROR(trainkit::detail::load_generators(saved, *devices, 0));
    loaded = std::get<at::Tensor>(default_generator_state().at("cpu"));
    return absl::OkStatus();
  });
  CHECK(texts == std::vector<std::string>{"ok", "ok"});
  CHECK(at::equal(loaded, state_of(2)));
}

TEST_CASE("A generator state that is a view of larger memory is restored", "[train][rng_state]") {
  torch::manual_seed(3);
  const CheckpointContents copy = snapshot({.model = {}, .optimizer = {}, .state = default_generator_state()});
  const at::Tensor state = std::get<at::Tensor>(default_generator_state().at("cpu"));
  const at::Tensor shifted = torch::cat({torch::zeros({64}, torch::kByte), state}).narrow(0, 64, state.numel());
  const at::Tensor first = torch::randn({101});
  for (const StateDict& saved : {copy.state, StateDict{{"cpu", shifted}}}) {
    REQUIRE(load_default_generator_state(saved) == absl::OkStatus());
    CHECK(torch::equal(torch::randn({101}), first));
  }
}
