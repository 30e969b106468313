// Losses that differentiate: forces of an energy model and a Laplacian, trained and evaluated, compared with PyTorch.
#include "reference_util.h"
#include "temp_dir.h"
#include "test_util.h"
#include "train/reference_training.h"
#include "trainkit/optim/adam.h"
#include "trainkit/train/trainer.h"

using namespace trainkit;
using namespace trainkit::test;
using torch::autograd::grad;

namespace {

// As in tests/reference/forces.py.
constexpr int64_t kBatch = 16, kSteps = 50;
// float64: the same operations on the same numbers, summed in another order at most.
constexpr double kTolerance = 1e-11;

torch::nn::Sequential mlp(int64_t inputs) {
  return torch::nn::Sequential(torch::nn::Linear(inputs, 16), torch::nn::Tanh(), torch::nn::Linear(16, 16),
                               torch::nn::Tanh(), torch::nn::Linear(16, 1));
}

at::Tensor energy_of(torch::nn::Sequential& model, const at::Tensor& x) {
  const at::Tensor pairs = torch::triu_indices(4, 4, 1);
  const at::Tensor distance = (x.index_select(1, pairs[0]) - x.index_select(1, pairs[1])).norm(2, {2}, true);
  return model->forward(distance).sum({1, 2});
}

LossOutput forces_loss(torch::nn::Sequential& model, const Batch& batch) {
  const at::Tensor x = batch["x"].clone().requires_grad_();
  const at::Tensor energy = energy_of(model, x);
  const at::Tensor forces = -grad({energy.sum()}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
  const at::Tensor energy_error = at::mse_loss(energy, batch["energy"]);
  LossOutput output(energy_error + 10 * at::mse_loss(forces, batch["forces"]));
  output.metrics = {{"energy_mse", energy_error}, {"force_mae", (forces - batch["forces"]).abs().mean()}};
  return output;
}

at::Tensor pinn_loss(torch::nn::Sequential& model, const Batch& batch) {
  const at::Tensor x = batch["inside"].clone().requires_grad_();
  const at::Tensor slope = grad({model->forward(x).sum()}, {x}, {}, true, true)[0];
  at::Tensor laplacian = at::zeros_like(batch["f"]);
  for (int64_t k = 0; k < 2; ++k) {
    laplacian = laplacian + grad({slope.select(1, k).sum()}, {x}, {}, true, true)[0].select(1, k);
  }
  return (laplacian + batch["f"]).square().mean() + model->forward(batch["border"]).square().mean();
}

}  // namespace

TEST_CASE("Training and validation with forces and a Laplacian equal PyTorch's", "[train][trainer][forces]") {
  if (python().empty()) TRAINKIT_SKIP("TRAINKIT_PYTHON is not set");
  const TempDir dir;
  run_reference("forces.py", dir / "out.pt");
  const ReferenceTraining reference(dir / "out.pt");
  const auto train = [&](const std::string& name, const std::vector<std::string>& fields, int64_t inputs, auto loss,
                         bool validates) {
    const std::string prefix = name + ".";
    auto devices =
        DeviceReplicator::create([&] { return reference.with_weights(mlp(inputs), prefix + "init."); }).value();
    auto trainer = Trainer::create(*devices, Adam({.lr = 1e-2}), {.max_steps = kSteps, .log_every = 0}).value();
    const auto loader = reference.loader(prefix, fields, kBatch), validation = reference.loader(prefix, fields, 24);
    StepValues losses;
    FitOptions fit{.validation = validates ? validation.get() : nullptr, .validation_with_grad = true};
    fit.events = &losses;
    const TrainerResult result = trainer.fit(*loader, loss, fit).value();
    const double of_losses = (losses.tensor() - reference[prefix + "losses"]).abs().max().item<double>();
    const double of_weights = reference.largest_difference(*devices->module(), prefix + "final.");
    std::cout << name << ": largest difference to PyTorch of " << kSteps << " losses " << of_losses
              << ", of the weights " << of_weights << std::endl;
    CHECK(of_losses <= kTolerance);
    CHECK(of_weights <= kTolerance);
    CHECK(losses.values.back() < 0.9 * losses.values.front());
    for (const at::Tensor& parameter : devices->module()->parameters()) CHECK(parameter.dtype() == at::kDouble);
    return result;
  };
  const TrainerResult forces = train("forces", {"x", "energy", "forces"}, 1, forces_loss, true);
  const at::Tensor expected = reference["forces.validation"];
  CHECK(forces.evaluation.at("energy_mse") == Approx(expected[0].item<double>()).epsilon(1e-9));
  CHECK(forces.evaluation.at("force_mae") == Approx(expected[1].item<double>()).epsilon(1e-9));
  train("pinn", {"inside", "f", "border"}, 2, pinn_loss, false);
}
