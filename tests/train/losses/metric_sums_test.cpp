// Sums of loss and metrics over micro-batches.
#include "train/losses/metric_sums.h"

#include <torch/torch.h>

#include "test_util.h"
#include "train/loop_util.h"
#include "train/losses/loss_weights.h"
#include "train/losses/replica_losses.h"
#include "train/retry/memory_recovery.h"

using namespace trainkit;
using namespace trainkit::test;
using trainkit::detail::LossWeights;
using trainkit::detail::MemoryRecovery;
using trainkit::detail::MetricSums;
using trainkit::detail::ReplicaResult;

namespace {

struct Sums {
  std::unique_ptr<DeviceReplicator> devices = DeviceReplicator::create([] { return TinyNet(0); }).value();
  MemoryRecovery memory{at::kCPU, nullptr};
  LossWeights weights{*devices, 2, memory};
  MetricSums sums{*devices, memory};

  void add(double loss, double weight, const std::vector<std::pair<std::string, double>>& metrics = {},
           const std::string& nonfinite = "") {
    LossOutput output(at::tensor(loss, at::kDouble));
    for (const auto& [name, value] : metrics) output.metrics.emplace_back(name, at::tensor(value, at::kDouble));
    const auto share = weights.share_of(0, weight, 1);
    sums.add({{output, weight, share.share, share.unit, nonfinite}}, nullptr);
    weights.add(weight);
  }
};

}  // namespace

TEST_CASE("A metric is averaged over the micro-batches that have it, by their weights", "[train][metric_sums]") {
  Sums step;
  step.add(1, 2, {{"a", 10}});
  step.add(4, 6, {{"b", 20}, {"a", 30}});
  step.sums.correct(step.weights);
  const StepMetrics metrics = step.sums.take(step.weights);
  CHECK(metrics.weight == 8);
  CHECK(metrics.loss.item<double>() == Approx((2 * 1 + 6 * 4) / 8.0));
  REQUIRE(metrics.metrics.size() == 2);
  CHECK(metrics.metrics[0].first == "a");
  CHECK(metrics.metrics[0].second.item<double>() == Approx((2 * 10 + 6 * 30) / 8.0));
  CHECK(metrics.metrics[1].second.item<double>() == Approx(20));
  CHECK(metrics.metric_weights == std::vector<double>{8, 6});
}

TEST_CASE("A micro-batch of weight 0 adds no value, not even NaN, and names of which nothing counts are dropped",
          "[train][metric_sums]") {
  Sums step;
  step.add(NAN, 0, {{"a", NAN}});
  step.add(3, 1);
  step.sums.correct(step.weights);
  const StepMetrics metrics = step.sums.take(step.weights);
  CHECK(metrics.loss.item<double>() == Approx(3));
  CHECK(metrics.metrics.empty());
}

TEST_CASE("A step without rows has zeros under the names of the steps before", "[train][metric_sums]") {
  Sums step;
  step.add(1, 2, {{"a", 10}});
  step.add(1, 2, {{"a", 10}});
  static_cast<void>(step.sums.take(step.weights));
  step.weights.clear();
  step.sums.fill();
  const StepMetrics metrics = step.sums.take(step.weights);
  CHECK(metrics.loss.item<double>() == 0);
  REQUIRE(metrics.metrics.size() == 1);
  CHECK(metrics.metrics[0].first == "a");
  CHECK(metrics.metric_weights == std::vector<double>{0});
}

TEST_CASE("A metric that somebody else holds is copied", "[train][metric_sums]") {
  Sums step;
  LossWeights whole(*step.devices, 1, step.memory);
  const at::Tensor held = at::tensor(2.0), own = at::tensor(1.0);
  LossOutput output(at::tensor(1.0));
  output.metrics = {{"held", held}};
  const auto share = whole.share_of(0, 1, 1);
  step.sums.add({{output, 1, share.share, share.unit, ""}}, nullptr);
  whole.add(1);
  held.fill_(5);
  CHECK(step.sums.take(whole).metrics[0].second.item<float>() == 2);
  const std::vector<at::Tensor> state = {held};
  step.sums.add({{output, 1, share.share, share.unit, ""}}, &state);
  held.fill_(7);
  CHECK(step.sums.take(whole).metrics[0].second.item<float>() == 5);
}

TEST_CASE("The origin of the first loss that is not finite is that of the step", "[train][metric_sums]") {
  Sums step;
  step.add(1, 1);
  step.add(NAN, 1, {}, "first");
  step.add(NAN, 1, {}, "second");
  CHECK(step.sums.take(step.weights).first_nonfinite == "first");
  CHECK(step.sums.nonfinite().empty());
}
