#include "trainkit/rl/rollout_buffer.h"

#include <algorithm>
#include <set>

#include "rl/walkers.h"
#include "trainkit/core/error.h"

using namespace trainkit;
using namespace trainkit::test;
using Catch::Contains;

namespace {

std::unique_ptr<RolloutBuffer> make(RolloutOptions options) {
  return RolloutBuffer::create(walker_fields(), options).value();
}

/// Fills and finishes a rollout in which all walkers go `pace` per step. Returns the observations that were valued.
at::Tensor collect(RolloutBuffer& rollout, Walkers& walkers, int64_t pace = 1) {
  while (!rollout.is_full()) {
    const at::Tensor observation = walkers.observation(), action = torch::full({walkers.size()}, pace);
    rollout.add({observation, action}, value_of(observation));
    rollout.add_outcome(walkers.step(action));
  }
  at::Tensor valued;
  const absl::Status finished = rollout.finish({walkers.observation()}, [&](const Batch& rows) {
    valued = rows["obs"].clone();
    return value_of(rows["obs"]).unsqueeze(-1);
  });
  REQUIRE(finished == absl::OkStatus());
  return valued;
}

std::vector<int64_t> rows_of(const Batch& batch) { return {batch.row_indices().begin(), batch.row_indices().end()}; }

}  // namespace

TEST_CASE("Advantages and returns are those of episodes that terminate and that are truncated", "[rl][rollout]") {
  // Steps of 2: positions 2, 4, 6, 8 (terminated after 4 steps at the limit: terminated counts), 2. Values are 10 x the
  // observation before the step: 0, 20, 40, 60, 0; after the rollout the walker is at 2.
  const auto rollout = make({.horizon = 5, .simulators = 1, .batch_size = 5, .gae = {.gamma = 0.5, .lambda = 0.5}});
  Walkers walkers(1);
  const at::Tensor valued = collect(*rollout, walkers, 2);
  CHECK(at::equal(valued, torch::tensor({2.f}).view({1, 1})));  // no final observation: none was only truncated
  // delta_t = r + next / 2 - v: 2 + 10 - 0 = 12; 4 + 20 - 20 = 4; 6 + 30 - 40 = -4; 8 - 60 = -52; 2 + 10 - 0 = 12
  // A_3 = -52, A_2 = -4 - 52 / 4 = -17, A_1 = 4 - 17 / 4 = -0.25, A_0 = 12 - 0.25 / 4 = 11.9375
  CHECK(at::equal(rollout->field("advantage").view({-1}), torch::tensor({11.9375f, -0.25f, -17.f, -52.f, 12.f})));
  CHECK(at::equal(rollout->field("return").view({-1}), torch::tensor({11.9375f, 19.75f, 23.f, 8.f, 12.f})));

  // Steps of 1: positions 1, 2, 3, 4 (truncated at the limit), 1.
  const auto truncated = make({.horizon = 5, .simulators = 1, .batch_size = 5, .gae = {.gamma = 0.5, .lambda = 0.5}});
  Walkers again(1);
  CHECK(at::equal(collect(*truncated, again, 1), torch::tensor({1.f, 4.f}).view({2, 1})));
  // delta: 1 + 5 - 0 = 6; 2 + 10 - 10 = 2; 3 + 15 - 20 = -2; 4 + 40 / 2 - 30 = -6 (bootstraps from 4, not from 0); 6
  // A_3 = -6, A_2 = -2 - 6 / 4 = -3.5, A_1 = 2 - 3.5 / 4 = 1.125, A_0 = 6 + 1.125 / 4 = 6.28125
  CHECK(at::equal(truncated->field("advantage").view({-1}), torch::tensor({6.28125f, 1.125f, -3.5f, -6.f, 6.f})));
}

TEST_CASE("Each epoch of a rollout has every row once, in an order of its own", "[rl][rollout]") {
  const RolloutOptions options = {.horizon = 6, .simulators = 4, .batch_size = 8, .epochs = 2, .seed = 5};
  const auto rollout = make(options), same = make(options);
  Walkers walkers(4), others(4);
  rollout->collect_with([&](RolloutBuffer& buffer) { return collect(buffer, walkers), absl::OkStatus(); });
  same->collect_with([&](RolloutBuffer& buffer) { return collect(buffer, others), absl::OkStatus(); });
  CHECK(rollout->epoch_length() == 6);
  std::set<std::vector<int64_t>> orders;
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    CHECK(rollout->epoch() == epoch);
    for (int64_t pass = 0; pass < 2; ++pass) {
      std::vector<int64_t> seen;
      for (int64_t i = 0; i < 3; ++i) {
        const Batch batch = *rollout->next().value();
        CHECK(rows_of(batch) == rows_of(*same->next().value()));
        CHECK(rollout->position() == 3 * pass + i + 1);
        for (int64_t row = 0; row < 8; ++row) {
          const int64_t number = batch.row_indices()[static_cast<size_t>(row)] - epoch * 24;
          seen.push_back(number);
          const auto recorded = [&](const char* name) {
            return rollout->field(name)[number / 4][number % 4].item<float>();
          };
          CHECK(batch["obs"][row].item<float>() == recorded("obs"));
          CHECK(batch["return"][row].item<float>() == recorded("return"));
        }
        const at::Tensor advantage = batch["advantage"];
        CHECK(std::abs(advantage.mean().item<float>()) < 1e-5f);
        CHECK(std::abs(advantage.std().item<float>() - 1) < 1e-4f);
      }
      orders.insert(seen);
      std::sort(seen.begin(), seen.end());
      for (size_t i = 0; i < seen.size(); ++i) CHECK(seen[i] == static_cast<int64_t>(i));
    }
    CHECK_FALSE(rollout->next().value());
    CHECK_FALSE(same->next().value());
  }
  CHECK(orders.size() == 4);
}

TEST_CASE("Without normalisation a batch has the advantages of the rollout", "[rl][rollout]") {
  const auto rollout = make({.horizon = 4, .simulators = 2, .batch_size = 8, .normalize_advantage = false});
  Walkers walkers(2);
  collect(*rollout, walkers);
  const Batch batch = *rollout->next().value();
  for (int64_t row = 0; row < 8; ++row) {
    const int64_t number = batch.row_indices()[static_cast<size_t>(row)];
    CHECK(batch["advantage"][row].item<float>() == rollout->field("advantage")[number / 2][number % 2].item<float>());
  }
}

TEST_CASE("A program that fills the rollout itself steps between", "[rl][rollout]") {
  const auto rollout = make({.horizon = 2, .simulators = 1, .batch_size = 1});
  Walkers walkers(1);
  CHECK(absl::IsFailedPrecondition(rollout->next().status()));
  for (int64_t round = 0; round < 3; ++round) {
    collect(*rollout, walkers);
    CHECK_THROWS_WITH(rollout->add({walkers.observation(), torch::ones({1}, torch::kLong)}, torch::zeros({1})),
                      Contains("not used up"));
    if (round > 0) CHECK_FALSE(rollout->next().value());  // the end of the epoch before
    for (int64_t i = 0; i < 2; ++i) CHECK(rollout->next().value());
  }
  CHECK_FALSE(rollout->next().value());
  CHECK(absl::IsFailedPrecondition(rollout->next().status()));
}

TEST_CASE("Return and length of the episodes that end in a rollout are averaged", "[rl][rollout]") {
  const auto rollout = make({.horizon = 3, .simulators = 1, .batch_size = 3});
  Walkers walkers(1);
  collect(*rollout, walkers);  // 1, 2, 3: the episode continues
  CHECK(rollout->metrics() == std::map<std::string, double>{{"episodes", 0}});
  static_cast<void>(rollout->next().value());
  collect(*rollout, walkers);  // 4: truncated, then 1, 2
  CHECK(rollout->metrics() ==
        std::map<std::string, double>{{"episodes", 1}, {"episode_return", 10}, {"episode_length", 4}});
}

TEST_CASE("A function that fails, throws or does not finish ends the source with an error", "[rl][rollout]") {
  const auto rollout = make({.horizon = 2, .simulators = 1, .batch_size = 1});
  rollout->collect_with([](RolloutBuffer&) { return absl::InternalError("no robot"); });
  CHECK_THAT(rollout->next().status().ToString(), Contains("no robot"));
  rollout->collect_with([](RolloutBuffer&) -> absl::Status { throw std::runtime_error("broken arm"); });
  const absl::Status thrown = rollout->next().status();
  CHECK(exit_code(thrown) == ExitCode::kUsage);
  CHECK_THAT(error_line(thrown), Contains("broken arm") && Contains("rollout 1"));
  rollout->collect_with([](RolloutBuffer&) { return absl::OkStatus(); });
  CHECK_THAT(rollout->next().status().ToString(), Contains("without finish()"));
  rollout->stop(absl::CancelledError("enough"));
  CHECK(rollout->next().status().message() == "enough");
}

TEST_CASE("Options out of range, and tensors that do not fit, are refused", "[rl][rollout]") {
  const auto refused = [](const RolloutOptions& options, const std::string& text,
                          std::vector<FieldSpec> fields = walker_fields()) {
    const absl::Status status = RolloutBuffer::create(std::move(fields), options).status();
    CHECK(exit_code(status) == ExitCode::kUsage);
    CHECK_THAT(error_line(status), Contains(text));
  };
  refused({.horizon = 0, .simulators = 1, .batch_size = 1}, "horizon must be >= 1, got 0");
  refused({.horizon = 4, .simulators = 3, .batch_size = 5}, "batch_size must divide horizon * simulators = 12, got 5");
  refused({.horizon = 4, .simulators = 3, .batch_size = 4, .observations = {"image"}}, "there is no field 'image'");
  refused({.horizon = 4, .simulators = 3, .batch_size = 4, .gae = {.gamma = 2}}, "gae.gamma must be in [0, 1]");
  refused({.horizon = 4, .simulators = 3, .batch_size = 4}, "the field 'value' belongs to the buffer",
          {{"obs", at::kFloat, {}}, {"value", at::kFloat, {}}});

  const auto rollout = make({.horizon = 1, .simulators = 2, .batch_size = 1});
  const at::Tensor observation = torch::zeros({2, 1}), action = torch::ones({2}, torch::kLong);
  CHECK_THROWS_WITH(rollout->add({observation}, torch::zeros({2})), Contains("expected 2 tensors, got 1"));
  CHECK_THROWS_WITH(rollout->add({torch::zeros({3, 1}), action}, torch::zeros({2})), Contains("'obs' must be"));
  CHECK_THROWS_WITH(rollout->add({observation, torch::ones({2})}, torch::zeros({2})), Contains("'action' must be"));
  rollout->add({observation, action}, torch::zeros({2, 1}));
  CHECK_THROWS_WITH(rollout->add({observation, action}, torch::zeros({2})), Contains("add_outcome() must follow"));
  StepOutcome outcome = {torch::zeros({2}), torch::zeros({2}, torch::kBool), torch::ones({2}, torch::kBool)};
  CHECK_THROWS_WITH(rollout->add_outcome(outcome), Contains("final_observations"));
  CHECK(absl::IsFailedPrecondition(rollout->finish({observation}, [](const Batch&) { return at::Tensor(); })));
}
