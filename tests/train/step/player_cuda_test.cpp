// Several players on a GPU: graphs, one loss scale, several replicas.
#include "test_util.h"
#include "train/gan.h"
#include "train/gpu_training.h"
#include "trainkit/train/train_step.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

/// Players whose losses compute what they need: without shared tensors their steps can be captured.
std::vector<Player> separate_players() {
  std::vector<Player> players = gan_players();
  players[0].loss = [](Gan& gan, const Batch& batch) {
    return bce(gan->discriminator->forward(batch["x"]), 1) +
           bce(gan->discriminator->forward(gan->generator->forward(batch["z"]).detach()), 0);
  };
  players[1].loss = [](Gan& gan, const Batch& batch) {
    return bce(gan->discriminator->forward(gan->generator->forward(batch["z"])), 1);
  };
  players[0].grad_clip = 0.5;
  players[0].schedule = cosine_annealing_lr(20);
  return players;
}

std::vector<at::Tensor> host_copies(const torch::nn::Module& model) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& parameter : model.parameters()) copies.push_back(parameter.detach().cpu().clone());
  return copies;
}

std::unique_ptr<DeviceReplicator> gan_on(const DeviceReplicatorOptions& options) {
  torch::manual_seed(2);
  return DeviceReplicator::create([] { return Gan(); }, options).value();
}

}  // namespace

TEST_CASE("The graphs of players have the bits of eager steps", "[train][player_cuda]") {
  NEEDS_GPU;
  std::vector<std::vector<at::Tensor>> weights;
  for (const CudaGraph graph : {CudaGraph::kOff, CudaGraph::kOn}) {
    const auto devices = gan_on({.device = kGpu});
    TrainStep step(*devices, separate_players(), nullptr, {.cuda_graph = graph});
    for (int64_t i = 0; i < 14; ++i) step(gan_batch(i).to(kGpu));
    CHECK(step.graph_captures() == (graph == CudaGraph::kOn ? 2 : 0));
    CHECK((step.graph_steps() > 0) == (graph == CudaGraph::kOn));
    weights.push_back(host_copies(*devices->module()));
  }
  for (size_t i = 0; i < weights[0].size(); ++i) CHECK(weights[0][i].equal(weights[1][i]));
}

TEST_CASE("Players in float16 have one loss scale, and each skips its own step", "[train][player_cuda]") {
  NEEDS_GPU;
  const auto devices = gan_on({.device = kGpu});
  std::vector<Player> players = gan_players();
  bool breaks = false;
  players[1].loss = [&breaks](Gan& gan, const Batch& batch, const Shared& shared) {
    const at::Tensor loss = loss_of_g(gan, batch, shared).loss;
    return breaks ? loss * std::numeric_limits<float>::infinity() : loss;
  };
  TrainStep step(*devices, players, gan_fake, {.precision = Precision::kFp16, .scaler = {.init_scale = 1024}});
  step(gan_batch(0).to(kGpu));
  CHECK(step.scaler().get_scale().item<double>() == 1024);
  const auto before = host_copies(*devices->module());
  breaks = true;
  step(gan_batch(1).to(kGpu));
  const auto after = host_copies(*devices->module());
  CHECK(step.scaler().get_scale().item<double>() == 512);
  // The generator's four parameters come first.
  for (size_t i = 0; i < 4; ++i) CHECK(after[i].equal(before[i]));
  for (size_t i = 4; i < 8; ++i) CHECK_FALSE(after[i].equal(before[i]));
}

TEST_CASE("Players on the GPU train as on the CPU", "[train][player_cuda]") {
  NEEDS_GPU;
  const auto run = [](at::Device device) {
    const auto devices = gan_on({.device = device});
    TrainStep step(*devices, gan_players(), gan_fake, {});
    for (int64_t i = 0; i < 5; ++i) step(gan_batch(i).to(device));
    return host_copies(*devices->module());
  };
  const auto gpu = run(kGpu), cpu = run(at::kCPU);
  for (size_t i = 0; i < cpu.size(); ++i) CHECK(at::allclose(gpu[i], cpu[i], 1e-3, 1e-4));
}
