// What a loss function may do: keep state, keep tensors of its batch, leave out a metric, return a parameter.
#include <algorithm>
#include <mutex>
#include <thread>

#include "test_util.h"
#include "train/loop_util.h"
#include "trainkit/optim/sgd.h"
#include "trainkit/train/evaluate.h"
#include "trainkit/train/train_step.h"
#include "trainkit/train/trainer.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

Batch numbered_rows(int64_t first, int64_t rows) {
  const auto fields = std::make_shared<const std::vector<FieldSpec>>(
      std::vector<FieldSpec>{{"x", at::kFloat, {8}}, {"y", at::kLong, {}}});
  const at::Tensor number = at::arange(first, first + rows);
  return Batch(fields, {number.to(at::kFloat).unsqueeze(1).expand({rows, 8}).contiguous().mul(0.1), number % 4});
}

std::unique_ptr<DeviceReplicator> nets(int64_t replicas) {
  torch::manual_seed(1);
  return DeviceReplicator::create([] { return TinyNet(0.0); }, {.cpu_replicas = replicas}).value();
}

/// A loss that counts its calls in its own state, and reports the counts.
class Counts {
 public:
  LossFunction loss() {
    return make_loss_function([calls = 0, this](TinyNet& model, const Batch& batch) mutable {
      const std::lock_guard lock(mutex_);
      seen_.push_back(++calls);
      return tiny_loss(model, batch);
    });
  }
  std::vector<int> sorted() {
    std::sort(seen_.begin(), seen_.end());
    return seen_;
  }

 private:
  std::mutex mutex_;
  std::vector<int> seen_;
};

}  // namespace

TEST_CASE("A loss function keeps its state from call to call, on each replica", "[train][loss]") {
  for (const int64_t replicas : {1, 2}) {
    CAPTURE(replicas);
    const auto devices = nets(replicas);
    SGD optimizer({.lr = 0.1});
    TrainStep step(*devices, optimizer, {.grad_accum_steps = 2});
    Counts counts;
    const LossFunction loss = counts.loss();
    for (int i = 0; i < 4; ++i) {
      step.accumulate(numbered_rows(0, 4), loss);
      if (i % 2 == 1) step.finish();
    }
    auto loader = Prefetcher::create(tiny_dataset(4), SequentialSampler(4), {.batch_size = 4}).value();
    REQUIRE(evaluate(*devices, *loader, loss).ok());
    const std::vector<int> expected =
        replicas == 1 ? std::vector<int>{1, 2, 3, 4, 5} : std::vector<int>{1, 1, 2, 2, 3, 3, 4, 4, 5, 5};
    CHECK(counts.sorted() == expected);
  }
}

TEST_CASE("fit trains and evaluates with one loss function, whose state continues", "[train][loss]") {
  const auto devices = nets(1);
  auto loader = Prefetcher::create(tiny_dataset(8), SequentialSampler(8), {.batch_size = 4}).value();
  auto validation = Prefetcher::create(tiny_dataset(4), SequentialSampler(4), {.batch_size = 4}).value();
  auto trainer = Trainer::create(*devices, SGD({.lr = 0.1}), {.max_epochs = 1, .eval_every = 1}).value();
  Counts counts;
  REQUIRE(trainer.fit(*loader, counts.loss(), {.validation = validation.get()}).ok());
  CHECK(counts.sorted() == std::vector<int>{1, 2, 3, 4});
}

TEST_CASE("A retry calls the loss again, with the state of the first attempt, and its metrics count once",
          "[train][loss]") {
  const auto devices = nets(1);
  SGD optimizer({.lr = 0.1});
  TrainStep step(*devices, optimizer);
  std::vector<std::pair<int, int64_t>> calls;  // state, rows
  const LossFunction loss = make_loss_function([state = 0, &calls](TinyNet& model, const Batch& batch) mutable {
    calls.emplace_back(++state, batch.size());
    TORCH_CHECK(state != 1, "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried ...");
    LossOutput output(tiny_loss(model, batch));
    output.metrics = {{"one", at::ones({})}};
    return output;
  });
  const StepMetrics metrics = step(numbered_rows(0, 4), loss);
  CHECK(calls == std::vector<std::pair<int, int64_t>>{{1, 4}, {2, 2}, {3, 2}});
  CHECK(metrics.metrics.at(0).second.item<double>() == 1.0);
  CHECK(metrics.metric_weights == std::vector<double>{4.0});
}

TEST_CASE("Tensors of a batch that a loss function keeps are not overwritten by later micro-batches", "[train][loss]") {
  const auto devices = nets(1);
  SGD optimizer({.lr = 0.1});
  TrainStep step(*devices, optimizer, {.grad_accum_steps = 2});
  std::vector<at::Tensor> labels;
  const LossFunction loss = make_loss_function([&labels](TinyNet& model, const Batch& batch) {
    labels.push_back(batch["y"]);
    return tiny_loss(model, batch);
  });
  for (int64_t i = 0; i < 8; ++i) {
    step.accumulate(numbered_rows(3 * i, 3), loss);
    if (i % 2 == 1) step.finish();
  }
  for (int64_t i = 0; i < 8; ++i) {
    CAPTURE(i);
    CHECK(at::equal(labels[static_cast<size_t>(i)], numbered_rows(3 * i, 3)["y"]));
  }
}

TEST_CASE("Replicas that share a ConfusionMatrix lose no row", "[train][confusion_matrix]") {
  const auto devices = nets(3);
  SGD optimizer({.lr = 0.1});
  TrainStep step(*devices, optimizer);
  ConfusionMatrix confusion(4);
  const LossFunction loss = make_loss_function([&confusion](TinyNet& model, const Batch& batch) {
    for (int i = 0; i < 40; ++i) confusion.add(batch["y"], batch["y"]);
    return tiny_loss(model, batch);
  });
  for (int i = 0; i < 10; ++i) step(numbered_rows(0, 12), loss);
  CHECK(confusion.counts().equal(at::eye(4, at::kLong) * 3 * 400));
}

TEST_CASE("A metric that is a parameter, a buffer or the caller's own tensor keeps the value of its step",
          "[train][loss]") {
  const auto devices = nets(1);
  SGD optimizer({.lr = 1.0});
  TrainStep step(*devices, optimizer);
  at::Tensor own = at::zeros({});
  const LossFunction loss = make_loss_function([&own](TinyNet& model, const Batch& batch) {
    LossOutput output(tiny_loss(model, batch));
    output.metrics = {{"bias", model->out->bias[0]}, {"own", own}, {"view", own.detach()}, {"loss too", output.loss}};
    own.add_(1);
    return output;
  });
  const double before = devices->module()->named_parameters()["out.bias"][0].item<double>();
  const StepMetrics metrics = step(numbered_rows(0, 4), loss);
  step(numbered_rows(0, 4), loss);
  CHECK(metrics.metrics.at(0).second.item<double>() == before);
  CHECK(metrics.metrics.at(1).second.item<double>() == 1.0);
  CHECK(metrics.metrics.at(2).second.item<double>() == 1.0);
  CHECK(metrics.metrics.at(3).second.item<double>() == metrics.loss.item<double>());
}

namespace {

/// Returns the metric "even" for rows that begin with an even number, "first" otherwise; weight 0 for row 100.
LossOutput sometimes(TinyNet& model, const Batch& batch) {
  LossOutput output(tiny_loss(model, batch));
  const auto first = static_cast<int64_t>(std::lround(10 * batch["x"][0][0].item<double>()));
  if (first == 100) {
    output.weight = 0;
  } else {
    const at::Tensor value = at::scalar_tensor(static_cast<double>(first));
    output.metrics = {{first % 2 == 0 ? "even" : "odd", value}};
  }
  return output;
}

std::map<std::string, double> values_of(const StepMetrics& metrics) {
  std::map<std::string, double> values;
  for (const auto& [name, value] : metrics.metrics) values[name] = value.item<double>();
  return values;
}

}  // namespace

TEST_CASE("A metric is averaged over the micro-batches that returned it, by their weights", "[train][loss]") {
  using Values = std::map<std::string, double>;
  for (const int64_t replicas : {1, 2}) {
    CAPTURE(replicas);
    const auto devices = nets(replicas);
    SGD optimizer({.lr = 0.1});
    TrainStep step(*devices, optimizer, {.grad_accum_steps = 3});
    const LossFunction loss = make_loss_function(sometimes);
    const auto run = [&](const std::vector<std::pair<int64_t, int64_t>>& parts) {
      for (const auto& [first, rows] : parts) {
        // Each replica's share begins with the same row.
        const Batch share = numbered_rows(first, rows);
        std::vector<at::Tensor> tensors;
        for (const at::Tensor& tensor : share.tensors()) {
          tensors.push_back(at::cat(std::vector<at::Tensor>(static_cast<size_t>(replicas), tensor)));
        }
        step.accumulate(Batch(share.content()->fields, tensors), loss);
      }
      return values_of(step.finish());
    };
    const auto close = [](const Values& a, const Values& b) {
      CHECK(a.size() == b.size());
      for (const auto& [name, value] : b) CHECK(a.at(name) == Approx(value));
    };
    close(run({{7, 2}, {8, 2}, {4, 6}}), {{"odd", 7}, {"even", 5}});
    close(run({{100, 2}, {7, 2}, {9, 2}}), {{"odd", 8}});  // the first one counts nothing and has no metrics
    close(run({{8, 3}, {7, 1}}), {{"odd", 7}, {"even", 8}});
  }
}

TEST_CASE("An evaluation averages a metric over the batches that returned it", "[train][evaluate]") {
  const Batch all = numbered_rows(6, 8);
  const auto data = std::make_shared<TensorDataset>(
      std::vector<std::pair<std::string, at::Tensor>>{{"x", all["x"]}, {"y", all["y"]}});
  for (const int64_t replicas : {1, 2}) {
    CAPTURE(replicas);
    const auto devices = nets(replicas);
    auto loader = Prefetcher::create(data, SequentialSampler(8), {.batch_size = 3}).value();
    const Metrics metrics = evaluate(*devices, *loader, make_loss_function(sometimes)).value();
    // One replica: rows 6, 9, 12 begin batches of 3, 3 and 2. Two: 6 (1 row), 7 (2), 9 (1), 10 (2), 12 and 13 (1 each).
    CHECK(metrics.at("even") == Approx(replicas == 1 ? (6. * 3 + 12 * 2) / 5 : (6. + 10 * 2 + 12) / 4));
    CHECK(metrics.at("odd") == Approx(replicas == 1 ? 9. : (7. * 2 + 9 + 13) / 4));
  }
}
