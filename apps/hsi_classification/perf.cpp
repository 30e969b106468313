#include "hsi_classification/perf.h"

#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randperm.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <memory>
#include <tuple>

#include "trainkit/app/benchmark.h"
#include "trainkit/nn/functional.h"
#include "trainkit/optim/adam.h"

namespace trainkit::hsi {

TrainingTask make_bench(const RandomScene& scene, const std::vector<at::Device>& devices) {
  const HsiModelOptions& model = scene.model;
  const int64_t border = model.patch_size - 1, pixels = scene.height * scene.width;
  const auto feed = std::make_shared<Feed>(
      scene.feed, at::rand({scene.height + border, scene.width + border, model.bands}), model.patch_size, devices);
  const at::Tensor rows = at::randperm(pixels, at::kLong).slice(0, 0, std::min(scene.epoch_rows, pixels));
  TrainingTask task;
  task.training_set = feed->dataset(rows, at::randint(model.num_classes, {rows.numel()}, at::kLong), scene.augment);
  task.recipe.make_model = [model] { return create_model(model); };
  task.recipe.make_optimizer = [] { return std::make_unique<AdamW>(); };
  task.recipe.loss = make_loss_function([feed](HsiModel& net, const Batch& batch) {
    return cross_entropy(net.forward(feed->patches(batch)), batch["y"]);
  });
  return task;
}

std::string perf_verdict(double loader, double step, double both, int64_t num_workers, FeedKind feed) {
  return speed_verdict(loader, step, both, num_workers,
                       feed == FeedKind::kDevice ? "with --feed device " : "with --feed loader ",
                       ", or --feed device if the cube fits");
}

SweepPoint recommended(const std::vector<SweepPoint>& points) {
  TORCH_CHECK(!points.empty(), "nothing was measured");
  double fastest = 0;
  for (const SweepPoint& point : points) fastest = std::max(fastest, point.patches_per_second);
  const auto cost = [](const SweepPoint& point) {
    const bool loader = point.feed == FeedKind::kLoader;
    return std::tuple(point.batch_size, loader ? point.num_workers : 0, loader ? point.prefetch_factor : 0, loader);
  };
  const SweepPoint* best = nullptr;
  for (const SweepPoint& point : points) {
    if (point.patches_per_second < 0.97 * fastest) continue;
    if (!best || cost(point) < cost(*best)) best = &point;
  }
  return *best;
}

}  // namespace trainkit::hsi
