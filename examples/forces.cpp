// Learns the energy of clusters of atoms from energies and forces. A force is the negative slope of the energy, so the
// loss differentiates, in training and in the evaluation.
//   example_forces
#include <torch/torch.h>

#include <cstdio>

#include "trainkit/trainkit.h"

using namespace trainkit;

/// Morse's potential, summed over the pairs of a cluster. `distance` (rows, pairs, 1); returns (rows).
at::Tensor morse(const at::Tensor& distance) { return ((1 - (1.5 * (1 - distance)).exp()).square() - 1).sum({1, 2}); }

/// Distances of all pairs of atoms. `x` (rows, atoms, 3); returns (rows, pairs, 1).
at::Tensor distances(const at::Tensor& x) {
  const at::Tensor pairs = torch::triu_indices(x.size(1), x.size(1), 1, at::TensorOptions(x.device()).dtype(at::kLong));
  return (x.index_select(1, pairs[0]) - x.index_select(1, pairs[1])).norm(2, {2}, /*keepdim=*/true);
}

struct NetImpl : torch::nn::Module {
  torch::nn::Sequential pair = register_module(
      "pair", torch::nn::Sequential(torch::nn::Linear(1, 32), torch::nn::Tanh(), torch::nn::Linear(32, 32),
                                    torch::nn::Tanh(), torch::nn::Linear(32, 1)));
  /// Energy (rows): a learned function of the distance, summed over all pairs.
  at::Tensor forward(const at::Tensor& x) { return pair->forward(distances(x)).sum({1, 2}); }
};
TORCH_MODULE(Net);

/// Returns the energies of `x` and the forces on its atoms. The forces keep their graph: the loss differentiates them.
template <class Energy>
std::pair<at::Tensor, at::Tensor> energy_and_forces(Energy energy_of, const at::Tensor& x) {
  const at::Tensor place = x.detach().clone().requires_grad_();
  const at::Tensor energy = energy_of(place);
  return {energy, -torch::autograd::grad({energy.sum()}, {place}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0]};
}

/// `rows` clusters of four atoms around the corners of a tetrahedron, their energies and forces.
std::unique_ptr<Prefetcher> clusters(int64_t rows) {
  const at::Tensor corners = torch::tensor({0., 0., 0., 0., 1., 1., 1., 0., 1., 1., 1., 0.}, at::kFloat).view({4, 3});
  const at::Tensor x = corners + 0.15 * torch::randn({rows, 4, 3});
  const auto [energy, forces] = energy_and_forces([](const at::Tensor& at) { return morse(distances(at)); }, x);
  const auto set =
      std::make_shared<TensorDataset>(NamedTensors{{"x", x}, {"energy", energy.detach()}, {"forces", forces.detach()}});
  return Prefetcher::create(set, RandomSampler(rows, {.seed = 2}), {.batch_size = 50}).value();
}

int main() {
  torch::manual_seed(2);
  const auto loader = clusters(1000), validation = clusters(200);
  auto devices = DeviceReplicator::create([] { return Net(); }).value();
  auto trainer = Trainer::create(*devices, Adam({.lr = 5e-3}), {.max_epochs = 30, .eval_every = 100}).value();
  const auto loss = [](Net& net, const Batch& batch) {
    const auto [energy, forces] = energy_and_forces([&](const at::Tensor& at) { return net->forward(at); }, batch["x"]);
    LossOutput output(at::mse_loss(energy, batch["energy"]) + 10 * at::mse_loss(forces, batch["forces"]));
    output.metrics = {{"force_error", (forces - batch["forces"]).abs().mean()},
                      {"force", batch["forces"].abs().mean()}};
    return output;
  };
  FitOptions fit{.validation = validation.get(), .validation_with_grad = true};
  fit.on_evaluation = [](int64_t step, Metrics& metrics) {
    std::printf("step %3ld  forces differ by %.3f, mean force %.3f\n", static_cast<long>(step),
                metrics.at("force_error"), metrics.at("force"));
  };
  const TrainerResult result = trainer.fit(*loader, loss, fit).value();
  return result.evaluation.at("force_error") < 0.1 * result.evaluation.at("force") ? 0 : 1;
}
