// The update of a step, on gradients that the test sets.
#include "train/update/weight_update.h"

#include <torch/torch.h>

#include "optim/optimizer_parts.h"
#include "test_util.h"
#include "train/agreement/agreement.h"
#include "train/agreement/steps_in_flight.h"
#include "train/batch_norm_net.h"
#include "train/losses/loss_weights.h"
#include "train/losses/metric_sums.h"
#include "train/losses/replica_losses.h"
#include "train/retry/memory_recovery.h"
#include "train/retry/step_snapshot.h"
#include "trainkit/optim/sgd.h"

using namespace trainkit;
using namespace trainkit::test;
using namespace trainkit::detail;

namespace {

struct Update {
  explicit Update(const TrainStepOptions& options)
      : devices((torch::manual_seed(1), DeviceReplicator::create([] { return BatchNormNet(4); }).value())),
        update(strategy_of(*devices), optimizer, options, /*scheduler=*/nullptr, memory) {}

  at::Tensor& weight() { return devices->module()->as<BatchNormNetImpl>()->out->weight; }
  at::Tensor& statistic() { return devices->module()->as<BatchNormNetImpl>()->norm->running_mean; }

  /// A step whose gradients are all `gradient`, and which expected the weight `expected`.
  StepMetrics step(double gradient, double weight, double expected) {
    snapshot.take();
    statistic().add_(1);
    for (const at::Tensor& parameter : devices->module()->parameters()) {
      parameter.mutable_grad() = at::full_like(parameter, gradient);
    }
    const auto share = weights.share_of(0, expected, 1);
    if (weight > 0) sums.add({{LossOutput(at::tensor(1.0)), weight, weight / expected, share.unit, ""}}, nullptr);
    weights.add(weight);
    sums.fill();
    static_cast<void>(agreement->settle(1, weights.sum(), weights.expected()));
    update.run(*agreement, weights, sums, snapshot);
    StepMetrics metrics = sums.take(weights);
    weights.clear();
    return metrics;
  }

  std::unique_ptr<DeviceReplicator> devices;
  SGD optimizer{{.lr = 0.5}};
  MemoryRecovery memory{at::kCPU, nullptr};
  LossWeights weights{*devices, 1, memory};
  MetricSums sums{*devices, memory};
  StepsInFlight in_flight{devices_of(*devices)};
  std::unique_ptr<Agreement> agreement = make_agreement(strategy_of(*devices), in_flight, memory, nullptr, false);
  StepSnapshot snapshot{*devices};
  WeightUpdate update;
};

}  // namespace

TEST_CASE("An update corrects gradients whose weight was not the expected one, and releases them",
          "[train][weight_update]") {
  Update exact({}), half({});
  const at::Tensor before = exact.weight().detach().clone();
  exact.step(1, 4, 4);
  half.step(1, 2, 4);
  CHECK(torch::allclose(exact.weight(), before - 0.5));
  CHECK(torch::allclose(half.weight(), before - 1));
  CHECK_FALSE(exact.weight().grad().defined());
  CHECK(exact.update.seconds() > 0);
}

TEST_CASE("An update in which nothing counts changes nothing and has norm 0", "[train][weight_update]") {
  Update update({.grad_clip = 1});
  const at::Tensor before = update.weight().detach().clone();
  const StepMetrics metrics = update.step(1, 0, 4);
  CHECK(torch::equal(update.weight(), before));
  CHECK(metrics.grad_norm.item<float>() == 0);
  CHECK_FALSE(update.weight().grad().defined());
  CHECK(OptimizerParts::of(update.optimizer).counts.upper_bound() == 0);
}

TEST_CASE("An update clips to the norm that it reports", "[train][weight_update]") {
  Update update({.grad_clip = 0.5});
  const at::Tensor before = update.weight().detach().clone();
  const StepMetrics metrics = update.step(3, 4, 4);
  int64_t numbers = 0;
  for (const at::Tensor& parameter : update.devices->module()->parameters()) numbers += parameter.numel();
  const double norm = 3 * std::sqrt(static_cast<double>(numbers));
  CHECK(metrics.grad_norm.item<double>() == Approx(norm));
  CHECK(torch::allclose(update.weight(), before - 0.5 * 3 * 0.5 / norm, 1e-4));
}

TEST_CASE("An update skips gradients that are not finite, restores the buffers and counts", "[train][weight_update]") {
  Update update({.skip_nonfinite = true, .ema_decay = 0.5});
  const at::Tensor before = update.weight().detach().clone(), statistic = update.statistic().clone();
  CHECK(update.step(NAN, 4, 4).skipped_in_a_row.item<float>() == 1);
  const StepMetrics second = update.step(INFINITY, 4, 4);
  CHECK(second.skipped_in_a_row.item<float>() == 2);
  CHECK_FALSE(second.first_nonfinite.empty());
  CHECK(torch::equal(update.weight(), before));
  CHECK(torch::equal(update.statistic(), statistic));
  CHECK(update.step(1, 4, 4).skipped_in_a_row.item<float>() == 0);
  CHECK(torch::allclose(update.weight(), before - 0.5));
  const NamedTensors averages = update.update.copies().averages(0);
  for (const auto& [name, average] : averages) {
    if (name == "out.weight") CHECK(torch::allclose(average, before - 0.25));
  }
}

TEST_CASE("Weights and averages change places, and back", "[train][weight_update]") {
  Update update({.ema_decay = 0.5});
  const at::Tensor before = update.weight().detach().clone();
  update.step(1, 4, 4);
  update.update.copies().swap_averages();
  CHECK(torch::allclose(update.weight(), before - 0.25));
  update.update.copies().swap_averages();
  CHECK(torch::allclose(update.weight(), before - 0.5));
}
