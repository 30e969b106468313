// RolloutBuffer and gae() on a GPU: the rows, advantages and batches of the CPU.
#include <torch/torch.h>

#include <algorithm>

#include "cuda_sim/cuda_sim_control.h"
#include "rl/walkers.h"
#include "rl/written_files.h"
#include "trainkit/rl/gae.h"

using namespace trainkit;
using namespace trainkit::test;

#define NEEDS_GPU \
  if (!torch::cuda::is_available()) TRAINKIT_SKIP("there is no GPU")

namespace {

const at::Device kGpu(at::kCUDA, 0);

std::unique_ptr<RolloutBuffer> make(at::Device device, bool normalizes) {
  return RolloutBuffer::create(walker_fields(), {.horizon = 9,
                                                 .simulators = 5,
                                                 .batch_size = 15,
                                                 .epochs = 2,
                                                 .gae = {.gamma = 0.9, .lambda = 0.8},
                                                 .normalize_advantage = normalizes,
                                                 .seed = 3,
                                                 .device = device})
      .value();
}

/// Fills a rollout of walkers, whose rows are on the CPU or (`on_device`) on the rollout's device, and whose memory is
/// written again at once.
void collect(RolloutBuffer& rollout, Walkers& walkers, at::Device device, bool on_device) {
  for (int64_t step = 0; !rollout.is_full(); ++step) {
    const at::Device from = on_device ? device : at::Device(at::kCPU);
    at::Tensor observation = walkers.observation().to(from);
    const at::Tensor moves = (torch::arange(walkers.size()) + step).remainder(3);
    at::Tensor action = moves.to(from, /*non_blocking=*/false, /*copy=*/true), value = value_of(observation);
    rollout.add({observation, action}, value);
    for (at::Tensor& tensor : std::vector<at::Tensor>{observation, action, value}) tensor.fill_(-9);
    const StepOutcome outcome = walkers.step(moves);
    rollout.add_outcome(outcome);
    outcome.final_observations[0].fill_(-9);
    outcome.reward.fill_(-9);
  }
  REQUIRE(rollout.finish({walkers.observation()}, [](const Batch& rows) { return value_of(rows["obs"]); }).ok());
}

bool is_close(const at::Tensor& a, const at::Tensor& b) { return at::allclose(a.cpu(), b.cpu(), 1e-5, 1e-5); }

}  // namespace

TEST_CASE("A rollout on a GPU has the CPU's rows, advantages and batches", "[rl][rollout_cuda]") {
  NEEDS_GPU;
  if (has_cuda_sim()) set_cuda_sim("DELAY_US", "300");
  const bool on_device = GENERATE(false, true), normalizes = GENERATE(false, true);
  const auto here = make(at::kCPU, normalizes), there = make(kGpu, normalizes);
  Walkers walkers(5), others(5);
  for (int64_t round = 0; round < 2; ++round) {
    collect(*here, walkers, at::kCPU, false);
    collect(*there, others, kGpu, on_device);
    for (const char* name : {"obs", "action", "value"}) CHECK(at::equal(here->field(name), there->field(name).cpu()));
    for (const char* name : {"advantage", "return"}) CHECK(is_close(here->field(name), there->field(name)));
    CHECK(there->metrics() == here->metrics());
    CHECK(here->metrics().at("episodes") > 5);
    for (int64_t i = 0; i < 6; ++i) {
      const Batch expected = *here->next().value(), batch = *there->next().value();
      CHECK(std::ranges::equal(batch.row_indices(), expected.row_indices()));
      for (const FieldSpec& field : here->fields()) {
        CAPTURE(field.name, i);
        CHECK(batch[field.name].device() == kGpu);
        CHECK(is_close(batch[field.name].to(at::kDouble), expected[field.name].to(at::kDouble)));
      }
    }
    if (round == 0) CHECK_FALSE((here->next().value() || there->next().value()));
  }
  if (has_cuda_sim()) {
    set_cuda_sim("DELAY_US", "0");
    CHECK(take_cuda_sim_findings().empty());
  }
}

TEST_CASE("A rollout on a GPU is saved, and continues, with its batches", "[rl][rollout_cuda]") {
  NEEDS_GPU;
  const TempDir dir;
  const auto rollout = make(kGpu, true), resumed = make(kGpu, true);
  Walkers walkers(5);
  collect(*rollout, walkers, kGpu, true);
  static_cast<void>(rollout->next().value());
  REQUIRE(resumed->load_state_dict(rollout->state_dict()).ok());
  REQUIRE(resumed->load_files(written(dir, rollout->files())) == absl::OkStatus());
  for (int64_t i = 1; i < 6; ++i) {
    const Batch expected = *rollout->next().value(), batch = *resumed->next().value();
    for (const FieldSpec& field : rollout->fields()) CHECK(at::equal(batch[field.name], expected[field.name]));
  }
}

TEST_CASE("Advantages of a GPU are those of the CPU", "[rl][rollout_cuda]") {
  NEEDS_GPU;
  torch::manual_seed(1);
  const auto [horizon, simulators] = GENERATE(std::pair(1, 1), std::pair(33, 130));
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    const auto real = [&, h = horizon, n = simulators] { return torch::randn({h, n}, dtype); };
    const auto flags = [&, h = horizon, n = simulators] { return torch::rand({h, n}) < 0.1; };
    GaeInput steps = {real(), real(), real(), flags(), flags()};
    steps.next_value.masked_fill_(steps.terminated, std::nan(""));  // not read there
    const GaeInput there = {steps.reward.to(kGpu), steps.value.to(kGpu), steps.next_value.to(kGpu),
                            steps.terminated.to(kGpu), steps.truncated.to(kGpu)};
    const GaeResult expected = gae(steps), result = gae(there);
    CHECK(result.advantage.device() == kGpu);
    const double near = dtype == at::kDouble ? 1e-12 : 1e-5;
    CHECK(at::allclose(result.advantage.cpu(), expected.advantage, near, near));
    CHECK(at::allclose(result.returns.cpu(), expected.returns, near, near));
  }
}
