// SimulatorPool: threads, ends of episodes, exceptions and resume.
#include "trainkit/rl/simulator_pool.h"

#include <torch/torch.h>

#include <set>
#include <thread>

#include "state_dict_util.h"
#include "test_util.h"
#include "trainkit/core/status.h"

using namespace trainkit;

namespace {

/// Walks by its action and chance. Ends beyond 3 steps from 0, or after `limit` steps.
class Walker : public Simulator {
 public:
  explicit Walker(int64_t number) : limit_(5 + number % 7) {}

  void reset(RandomStream& random, const BatchView& observation) override {
    place_ = random.uniform();
    steps_ = 0;
    show(observation);
  }
  SimulatorStep step(const std::byte* action, RandomStream& random, const BatchView& observation) override {
    place_ += static_cast<double>(*reinterpret_cast<const int64_t*>(action)) + random.normal();
    ++steps_;
    show(observation);
    return {.reward = static_cast<float>(place_), .terminated = std::abs(place_) > 3, .truncated = steps_ >= limit_};
  }

 protected:
  void show(const BatchView& observation) const {
    *observation.row<float>(0, 0) = static_cast<float>(place_);
    observation.row<int32_t>(1, 0)[0] = static_cast<int32_t>(steps_);
    observation.row<int32_t>(1, 0)[1] = static_cast<int32_t>(limit_);
  }
  double place_ = 0;
  int64_t steps_ = 0, limit_;
};

class SavedWalker final : public Walker {
 public:
  using Walker::Walker;
  std::optional<StateDict> save() const override { return StateDict{{"place", place_}, {"steps", steps_}}; }
  absl::Status load(const StateDict& state, const BatchView& observation) override {
    TRAINKIT_ASSIGN_OR_RETURN(place_, get_state<double>(state, "place"));
    TRAINKIT_ASSIGN_OR_RETURN(steps_, get_state<int64_t>(state, "steps"));
    show(observation);
    return absl::OkStatus();
  }
};

const std::vector<FieldSpec> kFields = {{"place", at::kFloat, {}}, {"steps", at::kInt, {2}}};
const FieldSpec kAction = {"action", at::kLong, {}};

template <class Kind = Walker>
std::unique_ptr<SimulatorPool> make_pool(const SimulatorPoolOptions& options) {
  return SimulatorPool::create([](int64_t i) { return std::make_unique<Kind>(i); }, kFields, kAction, options).value();
}

at::Tensor actions_of(int64_t step, int64_t count) { return (torch::arange(count, at::kLong) + step).remainder(3) - 1; }

/// Everything that steps [from, to) bring.
std::vector<at::Tensor> run(SimulatorPool& pool, int64_t from, int64_t to) {
  std::vector<at::Tensor> all;
  for (int64_t step = from; step < to; ++step) {
    const PoolStep result = pool.step(actions_of(step, pool.size())).value();
    for (const at::Tensor& tensor : {result.reward, result.terminated, result.truncated, result.ended,
                                     result.episode_return, result.episode_length, result.observation["place"],
                                     result.observation["steps"], result.next("place"), result.next("steps")}) {
      all.push_back(tensor.clone());
    }
  }
  return all;
}

bool same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(), [](const auto& x, const auto& y) { return x.equal(y); });
}

}  // namespace

TEST_CASE("A pool's results do not depend on the number of threads, but on the seed", "[rl][simulators]") {
  const auto expected = run(*make_pool({.simulators = 37, .threads = 1, .seed = 3}), 0, 40);
  for (const int64_t threads : {2, 5, 64}) {
    CAPTURE(threads);
    CHECK(same(expected, run(*make_pool({.simulators = 37, .threads = threads, .seed = 3}), 0, 40)));
  }
  CHECK(!same(expected, run(*make_pool({.simulators = 37, .threads = 1, .seed = 4}), 0, 40)));
}

TEST_CASE("An episode that ends is followed by the next one in the same step", "[rl][simulators]") {
  const int64_t count = 16;
  const auto pool = make_pool({.simulators = count, .threads = 2, .seed = 1});
  std::vector<double> returns(count, 0);
  std::vector<int64_t> lengths(count, 0);
  int64_t terminated = 0, truncated = 0;
  Batch before = pool->observation();
  for (int64_t step = 0; step < 60; ++step) {
    const at::Tensor place_before = before["place"].clone();
    const PoolStep result = pool->step(actions_of(step, count)).value();
    CHECK(before["place"].equal(place_before));  // the batch before is valid until the step after next
    CHECK(result.observation["place"].data_ptr() == pool->observation()["place"].data_ptr());
    const at::Tensor next = result.next("place"), next_steps = result.next("steps");
    int64_t ended = 0;
    for (int64_t i = 0; i < count; ++i) {
      returns[i] += result.reward[i].item<float>();
      ++lengths[i];
      const float place = next[i].item<float>();
      CHECK(place == result.reward[i].item<float>());
      CHECK(next_steps[i][0].item<int64_t>() == lengths[i]);
      CHECK(result.terminated[i].item<bool>() == std::abs(place) > 3);
      CHECK(result.truncated[i].item<bool>() == (lengths[i] >= 5 + i % 7));
      if (!result.terminated[i].item<bool>() && !result.truncated[i].item<bool>()) {
        CHECK(result.observation["place"][i].item<float>() == place);
        continue;
      }
      (result.terminated[i].item<bool>() ? terminated : truncated) += 1;
      CHECK(result.ended[ended].item<int64_t>() == i);
      CHECK(result.episode_return[ended].item<double>() == returns[i]);
      CHECK(result.episode_length[ended].item<int64_t>() == lengths[i]);
      CHECK(result.final_observations[0][i].item<float>() == place);
      CHECK(result.observation["steps"][i][0].item<int64_t>() == 0);
      ++ended;
      returns[i] = 0;
      lengths[i] = 0;
    }
    CHECK(result.ended.numel() == ended);
    before = result.observation;
  }
  CHECK(terminated > 20);
  CHECK(truncated > 20);
}

TEST_CASE("A pool of simulators that save resumes with the same bits, others begin new episodes", "[rl][simulators]") {
  const SimulatorPoolOptions options{.simulators = 9, .threads = 2, .seed = 8};
  const auto whole = make_pool<SavedWalker>(options);
  run(*whole, 0, 13);
  const StateDict saved = test::clone_state(whole->state_dict());
  CHECK(std::get<bool>(saved.at("exact")));
  const auto resumed = make_pool<SavedWalker>(options);
  REQUIRE(resumed->load_state_dict(saved).ok());
  CHECK(resumed->observation()["place"].equal(whole->observation()["place"]));
  CHECK(same(run(*whole, 13, 40), run(*resumed, 13, 40)));

  const auto other = make_pool<Walker>(options);
  run(*other, 0, 13);
  const StateDict inexact = other->state_dict();
  CHECK(!std::get<bool>(inexact.at("exact")));
  const at::Tensor steps = other->observation()["steps"].clone();
  const auto anew = make_pool<Walker>(options);
  REQUIRE(anew->load_state_dict(inexact).ok());
  CHECK(anew->observation()["steps"].select(1, 0).sum().item<int64_t>() == 0);
  CHECK(std::get<std::vector<int64_t>>(anew->state_dict().at("episode"))[2] ==
        std::get<std::vector<int64_t>>(inexact.at("episode"))[2] + 1);

  const auto refused = [&](const SimulatorPoolOptions& with, const StateDict& state) {
    return error_line(make_pool<SavedWalker>(with)->load_state_dict(state));
  };
  CHECK_THAT(refused({.simulators = 8, .seed = 8}, saved), Catch::Contains("has 9 simulators, this run 8"));
  CHECK_THAT(refused({.simulators = 9, .seed = 9}, saved), Catch::Contains("have seed 8, this run's 9"));
  StateDict lacks = saved;
  lacks.erase("simulator.4.place");
  CHECK_THAT(refused(options, lacks), Catch::Contains("simulator.4") && Catch::Contains("place"));
  CHECK(exit_code(make_pool<SavedWalker>(options)->load_state_dict(lacks)) == ExitCode::kWeights);
}

TEST_CASE("A pool names the first simulator that throws, and stays failed", "[rl][simulators]") {
  struct Broken final : Walker {
    explicit Broken(int64_t number) : Walker(number), breaks(number % 4 == 3) {}
    SimulatorStep step(const std::byte* action, RandomStream& random, const BatchView& observation) override {
      if (breaks && steps_ == 2) throw std::runtime_error("lost the ball");
      return Walker::step(action, random, observation);
    }
    bool breaks;
  };
  for (const int64_t threads : {1, 3}) {
    const auto pool = make_pool<Broken>({.simulators = 12, .threads = threads, .seed = 2});
    absl::Status status;
    while (status.ok()) status = pool->step(torch::zeros({12}, at::kLong)).status();
    CHECK(exit_code(status) == ExitCode::kUsage);
    CHECK_THAT(error_line(status), Catch::Contains("lost the ball") && Catch::Matches(".*simulator (3|7|11) threw.*"));
    CHECK(error_line(pool->step(torch::zeros({12}, at::kLong)).status()) == error_line(status));
  }
  // All fail in the same step: the lowest number.
  struct Late final : Walker {
    using Walker::Walker;
    SimulatorStep step(const std::byte*, RandomStream&, const BatchView&) override { throw std::runtime_error("no"); }
  };
  const auto late = make_pool<Late>({.simulators = 6, .threads = 2});
  CHECK_THAT(error_line(late->step(torch::zeros({6}, at::kLong)).status()), Catch::Contains("simulator 0 threw"));
  const auto factory = [](int64_t i) -> std::unique_ptr<Simulator> {
    if (i == 1) throw std::runtime_error("no more");
    return std::make_unique<Walker>(i);
  };
  CHECK_THAT(error_line(SimulatorPool::create(factory, kFields, kAction, {.simulators = 2}).status()),
             Catch::Contains("the factory of simulator 1 threw") && Catch::Contains("no more"));
}

TEST_CASE("A pool refuses options and actions that do not fit", "[rl][simulators]") {
  const auto factory = [](int64_t i) { return std::make_unique<Walker>(i); };
  const auto problem = [&](const SimulatorPoolOptions& options) {
    const absl::Status status = SimulatorPool::create(factory, kFields, kAction, options).status();
    CHECK(exit_code(status) == ExitCode::kUsage);
    return error_line(status);
  };
  CHECK_THAT(problem({.simulators = 0}), Catch::Contains("simulators must be >= 1, got 0"));
  CHECK_THAT(problem({.threads = 0}), Catch::Contains("threads must be >= 1, got 0"));
  const auto pool = make_pool({.simulators = 4});
  for (const at::Tensor& wrong :
       {torch::zeros({3}, at::kLong), torch::zeros({4}), torch::zeros({4, 1}, at::kLong), at::Tensor()}) {
    const absl::Status status = pool->step(wrong).status();
    CHECK(exit_code(status) == ExitCode::kUsage);
    CHECK_THAT(error_line(status), Catch::Contains("action"));
  }
  CHECK(pool->step(torch::zeros({4}, at::kLong)).ok());  // nothing has changed
}
