// Steps of two players, a generator and its discriminator, on one thread: MLPs with two hidden layers of 64 each, and
// the DCGAN of examples/gan.cpp. The peer, peers/two_players.py, takes the same two steps by hand in PyTorch. And the
// step of a Session compared with that of Trainer::fit.
#include <benchmark/benchmark.h>

#include "examples/dcgan.h"
#include "mlp_task.h"
#include "rounds.h"

namespace trainkit {
namespace {

constexpr int64_t kRows = 64;

struct PairImpl : torch::nn::Module {
  static torch::nn::Sequential mlp(int64_t in, int64_t out) {
    using torch::nn::Linear, torch::nn::ReLU;
    return torch::nn::Sequential(Linear(in, 64), ReLU(), Linear(64, 64), ReLU(), Linear(64, out));
  }
  torch::nn::Sequential generator = register_module("generator", mlp(16, 32));
  torch::nn::Sequential discriminator = register_module("discriminator", mlp(32, 1));
};
TORCH_MODULE(Pair);

template <class Model>
std::vector<Player> players_of() {
  const auto adam = [] { return std::make_shared<Adam>(AdamOptions{.lr = 2e-4, .betas = {0.5, 0.999}}); };
  if constexpr (std::is_same_v<Model, Gan>) return gan_players(adam(), adam());
  return {{.name = "d",
           .parameters = {"discriminator.*"},
           .optimizer = adam(),
           .loss =
               [](Model& pair, const Batch& batch, const Shared& shared) {
                 return bce(pair->discriminator->forward(batch["real"]), 1) +
                        bce(pair->discriminator->forward(shared.at("fake").detach()), 0);
               }},
          {.name = "g",
           .parameters = {"generator.*"},
           .optimizer = adam(),
           .loss = [](Model& pair, const Batch&, const Shared& shared) {
             return bce(pair->discriminator->forward(shared.at("fake")), 1);
           }}};
}

/// Steps of a run whose real rows are `real` and whose generator takes noise of `noise`, without its first dimension.
template <class Model>
void run_players(benchmark::State& state, const NamedTensors& real, std::vector<int64_t> noise) {
  at::set_num_threads(1);
  use_fast_kernels();  // as every trainer does
  const auto rows = std::make_shared<TensorDataset>(real);
  const auto loader = Prefetcher::create(rows, SequentialSampler(rows->size()), {.batch_size = kRows}).value();
  auto devices = DeviceReplicator::create([] { return Model(); }, {.device = at::kCPU}).value();
  noise.insert(noise.begin(), kRows);
  const auto fake = [noise](Model& model, const Batch&) -> Shared {
    return {{"fake", model->generator->forward(torch::randn(noise))}};
  };
  auto trainer =
      Trainer::create(*devices, players_of<Model>(), fake, {.max_steps = 1'000'000'000, .log_every = 0}).value();
  Session session = trainer.begin(*loader).value();
  for (int k = 0; k < 20; ++k) session.step().value();
  for (auto _ : state) session.step().value();
}

void BM_TwoPlayersMlp(benchmark::State& state) {
  torch::manual_seed(0);
  run_players<Pair>(state, {{"real", torch::randn({64 * kRows, 32})}}, {16});
}
BENCHMARK(BM_TwoPlayersMlp)->UseRealTime()->Unit(benchmark::kMicrosecond);

void BM_TwoPlayersDcgan(benchmark::State& state) {
  torch::manual_seed(0);
  run_players<Gan>(state, {{"picture", torch::randn({16 * kRows, 1, kSide, kSide}).tanh()}}, {kNoise, 1, 1});
}
BENCHMARK(BM_TwoPlayersDcgan)->UseRealTime()->Unit(benchmark::kMicrosecond)->MinTime(bench::quick() ? 0.05 : 2.0);

/// Alternates runs of Trainer::fit and of a Session with the same model and data. over_session and cpu_over_session are
/// the time of a session's step divided by that of fit's.
void BM_SessionOverFit(benchmark::State& state) {
  const int64_t steps = bench::quick() ? 50 : 1000;
  bench::MlpTask task;
  auto trainer = Trainer::create(*task.devices, Adam({.lr = 1e-3}), {.max_steps = steps, .log_every = 10}).value();
  const auto fit = [&] { return static_cast<double>(trainer.fit(*task.loader, bench::loss_of).value().steps_run); };
  const auto session = [&] {
    Session session = trainer.begin(*task.loader, bench::loss_of).value();
    while (session.step().value()) {
    }
    return static_cast<double>(session.finish().value().steps_run);
  };
  bench::run_rounds(state, {{"fit", [&](double duration) { return bench::rate(duration, fit); }},
                            {"session", [&](double duration) { return bench::rate(duration, session); }}});
}
BENCHMARK(BM_SessionOverFit)->Iterations(41)->UseManualTime()->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace trainkit
