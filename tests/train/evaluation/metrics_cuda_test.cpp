// Metrics on a GPU: the results of the CPU, and no wait per batch.
#include <ATen/ATen.h>

#include "cuda_sim/cuda_sim_control.h"
#include "tasks/batch_of.h"
#include "test_util.h"
#include "trainkit/train/metrics.h"

using namespace trainkit;
using namespace trainkit::test;

TEST_CASE("Metrics on a GPU equal those on the CPU, and do not wait for it in a batch", "[train][metrics][gpu]") {
  if (!torch::cuda::is_available()) TRAINKIT_SKIP("no GPU that LibTorch can use");
  const at::Device device(at::kCUDA, 0);
  at::manual_seed(1);
  const at::Tensor scores = at::rand({40}).mul(16).round(), classes = at::randint(2, {40}, at::kLong);
  Metrics expected, got;
  for (const bool on_gpu : {false, true}) {
    const MetricCollection metrics(AUROC(), RegressionMetrics(), MeanMetric("mean", "y"),
                                   ClassificationMetrics({.threshold = 8}));
    const at::Tensor x = on_gpu ? scores.to(device) : scores, y = on_gpu ? classes.to(device) : classes;
    metrics.update(x.slice(0, 0, 10), batch_of(x.slice(0, 0, 10), y.slice(0, 0, 10)));
    const auto waits = [] {
      int64_t count = 0;
      if (!has_cuda_sim()) return count;
      const nlohmann::json counts = cuda_sim_counts();
      for (const char* name : {"to_host", "pageable", "stream_syncs", "event_syncs", "device_syncs"}) {
        count += counts.at(name).get<int64_t>();
      }
      return count;
    };
    const int64_t before = waits();
    for (const auto& [begin, end] : {std::pair(10, 25), {25, 40}}) {
      metrics.update(x.slice(0, begin, end), batch_of(x.slice(0, begin, end), y.slice(0, begin, end)));
    }
    CHECK(waits() == before);
    REQUIRE(metrics.add_scores(nullptr, on_gpu ? got : expected).ok());
  }
  REQUIRE(expected.size() == 9);
  for (const auto& [name, value] : expected) {
    INFO(name);
    CHECK(got.at(name) == Approx(value).epsilon(1e-12));
  }
}
