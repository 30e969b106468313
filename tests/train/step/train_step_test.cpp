#include "trainkit/train/train_step.h"

#include <atomic>
#include <thread>

#include "test_util.h"
#include "train/loop_util.h"
#include "trainkit/core/error.h"
#include "trainkit/optim/adam.h"
#include "trainkit/optim/optimizer.h"
#include "trainkit/optim/sgd.h"
#include "trainkit/train/evaluate.h"
#include "trainkit/train/trainer.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

Batch make_batch(const at::Tensor& x, const at::Tensor& y) {
  const auto fields = std::make_shared<const std::vector<FieldSpec>>(
      std::vector<FieldSpec>{{"x", at::kFloat, {8}}, {"y", at::kLong, {}}});
  return Batch(fields, {x, y});
}

std::unique_ptr<DeviceReplicator> tiny_devices(double dropout = 0) {
  torch::manual_seed(1);
  return DeviceReplicator::create([&] { return TinyNet(dropout); }).value();
}

std::vector<at::Tensor> weights(const DeviceReplicator& devices) {
  std::vector<at::Tensor> copies;
  for (const auto& parameter : devices.module()->parameters()) copies.push_back(parameter.detach().clone());
  return copies;
}

double largest_difference(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, (a[i] - b[i]).abs().max().item<double>());
  return largest;
}

}  // namespace

TEST_CASE("A step equals hand-written forward, backward, clipping and update", "[train][train_step]") {
  const at::Tensor x = torch::randn({12, 8}), y = torch::randint(4, {12});
  const auto ours = tiny_devices(), byhand = tiny_devices();
  AdamW optimizer({.lr = 1e-2}), reference({.lr = 1e-2});
  TrainStep step(*ours, optimizer, {.grad_clip = 0.1});
  const LossFunction loss = make_loss_function(tiny_loss);
  for (auto& group : default_param_groups(*byhand->module())) reference.add_param_group(group);
  for (int i = 0; i < 5; ++i) {
    const StepMetrics metrics = step(make_batch(x, y), loss);
    TinyNet model(std::dynamic_pointer_cast<TinyNetImpl>(byhand->module()));
    const at::Tensor value = tiny_loss(model, make_batch(x, y));
    value.backward();
    const at::Tensor norm = clip_grad_norm_(reference, 0.1);
    reference.step();
    reference.zero_grad();
    CHECK(metrics.loss.item<float>() == value.item<float>());
    CHECK(metrics.grad_norm.item<float>() == norm.item<float>());
    CHECK(!metrics.loss.requires_grad());
  }
  CHECK(largest_difference(weights(*ours), weights(*byhand)) == 0.0);
}

TEST_CASE("Accumulated micro-batches give the step of the whole batch, weighted by their counts",
          "[train][train_step]") {
  const at::Tensor x = torch::randn({12, 8}), y = torch::randint(4, {12});
  const auto run = [&](const std::vector<int64_t>& cuts, int64_t accum) {
    const auto devices = tiny_devices();
    SGD optimizer({.lr = 1.0});
    TrainStep step(*devices, optimizer, {.grad_accum_steps = accum});
    const LossFunction loss = make_loss_function(tiny_loss);
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      step.accumulate(make_batch(x.slice(0, cuts[i], cuts[i + 1]), y.slice(0, cuts[i], cuts[i + 1])), loss);
    }
    const double mean = step.finish().loss.item<double>();
    return std::make_pair(weights(*devices), mean);
  };
  const auto whole = run({0, 12}, 1);
  for (const auto& [cuts, accum] : {std::make_pair(std::vector<int64_t>{0, 4, 8, 12}, int64_t{3}),
                                    {{0, 1, 2, 12}, 3},  // unequal weights
                                    {{0, 6, 12}, 8}}) {  // fewer micro-batches than planned: the end of the data
    const auto parts = run(cuts, accum);
    CHECK(largest_difference(parts.first, whole.first) < 1e-6);
    CHECK(parts.second == Approx(whole.second).epsilon(1e-6));
  }
}

namespace {

/// The mean over the labels that count, NaN if none does, in the way that poisons the gradients too.
LossOutput masked_loss(TinyNet& model, const Batch& batch) {
  const at::Tensor counts = batch["y"].ge(0), logits = model->forward(batch["x"]);
  const at::Tensor sum = at::cross_entropy_loss(logits, batch["y"], {}, at::Reduction::Sum);
  LossOutput output((sum + 0 * logits.sum()) / counts.sum(), counts.sum().item<double>());
  output.metrics = {{"mean", output.loss.detach()}};
  return output;
}

}  // namespace

TEST_CASE("A batch in which nothing counts weighs nothing", "[train][train_step]") {
  const at::Tensor x = torch::randn({4, 8}), y = torch::randint(4, {4}), none = torch::full({4}, -100, at::kLong);
  const LossFunction loss = make_loss_function(masked_loss);
  const auto run = [&](const std::vector<Batch>& batches, int64_t replicas = 1) {
    torch::manual_seed(1);
    const auto devices = DeviceReplicator::create([] { return TinyNet(0.0); }, {.cpu_replicas = replicas}).value();
    AdamW optimizer({.lr = 0.1});
    TrainStep step(*devices, optimizer, {.grad_accum_steps = static_cast<int64_t>(batches.size()), .grad_clip = 1.0});
    StepMetrics metrics;
    for (int i = 0; i < 2; ++i) {
      for (const Batch& batch : batches) step.accumulate(batch, loss);
      metrics = step.finish();
    }
    CHECK(metrics.metrics.at(0).second.item<double>() == metrics.loss.item<double>());
    return std::make_pair(weights(*devices), metrics.loss.item<double>());
  };
  const Batch counted = make_batch(x, y), uncounted = make_batch(x, none);
  const auto expected = run({counted});
  for (const auto& parts : {run({uncounted, counted}), run({counted, uncounted}),
                            run({make_batch(torch::cat({x, x}), torch::cat({y, none}))}, /*replicas=*/2),
                            run({make_batch(torch::cat({x, x}), torch::cat({none, y}))}, /*replicas=*/2)}) {
    CHECK(largest_difference(parts.first, expected.first) < 1e-6);
    CHECK(parts.second == Approx(expected.second).epsilon(1e-6));
  }
  // A step of such batches changes nothing and has loss 0.
  for (const int64_t replicas : {1, 2}) {
    const auto [after, mean] = run({uncounted, uncounted}, replicas);
    CHECK(largest_difference(after, weights(*tiny_devices())) == 0.0);
    CHECK(mean == 0.0);
  }
}

TEST_CASE("An evaluation leaves out batches in which nothing counts", "[train][evaluate]") {
  const auto devices = tiny_devices();
  const at::Tensor x = torch::randn({8, 8}), y = torch::randint(4, {8});
  const auto evaluate_rows = [&](const at::Tensor& rows, const at::Tensor& labels) {
    const auto data =
        std::make_shared<TensorDataset>(std::vector<std::pair<std::string, at::Tensor>>{{"x", rows}, {"y", labels}});
    auto loader = Prefetcher::create(data, SequentialSampler(rows.size(0)), {.batch_size = 4}).value();
    return evaluate(*devices, *loader, make_loss_function(masked_loss));
  };
  const at::Tensor none = torch::full({4}, -100, at::kLong);
  const Metrics expected = evaluate_rows(x.slice(0, 4), y.slice(0, 4)).value();
  CHECK(evaluate_rows(x, torch::cat({none, y.slice(0, 4)})).value().size() == 2);
  CHECK(evaluate_rows(torch::cat({x.slice(0, 4), x.slice(0, 4)}), torch::cat({none, y.slice(0, 4)})).value() ==
        expected);
  CHECK(exit_code(evaluate_rows(x.slice(0, 4), none).status()) == ExitCode::kData);
}

TEST_CASE("A negative weight of a loss is refused", "[train][train_step]") {
  const auto devices = tiny_devices();
  SGD optimizer({.lr = 1.0});
  TrainStep step(*devices, optimizer);
  const LossFunction loss =
      make_loss_function([](TinyNet& model, const Batch& batch) { return LossOutput(tiny_loss(model, batch), -1.0); });
  CHECK_THROWS_WITH(step(make_batch(torch::randn({2, 8}), torch::randint(4, {2})), loss),
                    Catch::Contains("LossOutput::weight must be finite and >= 0"));
}

TEST_CASE("Metrics are averaged over micro-batches as the loss is", "[train][train_step]") {
  const auto devices = tiny_devices();
  SGD optimizer({.lr = 0.1});
  TrainStep step(*devices, optimizer, {.grad_accum_steps = 2});
  int call = 0;
  const LossFunction loss = make_loss_function([&](TinyNet& model, const Batch& batch) -> LossOutput {
    LossOutput output(tiny_loss(model, batch), /*weight=*/call == 0 ? 3.0 : 1.0);
    output.metrics = {{"call", torch::tensor(static_cast<float>(call++))}};
    return output;
  });
  const Batch batch = make_batch(torch::randn({2, 8}), torch::randint(4, {2}));
  step.accumulate(batch, loss);
  step.accumulate(batch, loss);
  CHECK(step.finish().metrics.at(0).second.item<double>() == Approx(0.25));
}

TEST_CASE("An exception in the loss drops the gradients and leaves the weights unchanged", "[train][train_step]") {
  const auto devices = tiny_devices();
  SGD optimizer({.lr = 1.0});
  TrainStep step(*devices, optimizer, {.grad_accum_steps = 2});
  const Batch batch = make_batch(torch::randn({4, 8}), torch::randint(4, {4}));
  const auto before = weights(*devices);
  step.accumulate(batch, make_loss_function(tiny_loss));
  CHECK_THROWS_WITH(
      step.accumulate(
          batch, [](torch::nn::Module&, const Batch&) -> LossOutput { throw std::runtime_error("the loss failed"); }),
      "the loss failed");
  CHECK(step.accumulated() == 0);
  CHECK_THROWS_AS(step.finish(), c10::Error);
  for (const auto& parameter : devices->module()->parameters()) CHECK(!parameter.grad().defined());
  CHECK(largest_difference(weights(*devices), before) == 0.0);
}

TEST_CASE("bf16 runs the model in bfloat16 and keeps weights and loss in float32", "[train][train_step]") {
  const auto devices = tiny_devices();
  AdamW optimizer({.lr = 1e-3});
  TrainStep step(*devices, optimizer, {.precision = Precision::kBf16});
  at::ScalarType seen = at::kFloat;
  step(make_batch(torch::randn({4, 8}), torch::randint(4, {4})),
       make_loss_function([&](TinyNet& model, const Batch& batch) {
         seen = model->hidden->forward(batch["x"]).scalar_type();
         return tiny_loss(model, batch);
       }));
  CHECK(seen == at::kBFloat16);
  for (const auto& parameter : devices->module()->parameters()) CHECK(parameter.scalar_type() == at::kFloat);
}

TEST_CASE("Options out of range and fp16 on the CPU are refused", "[train][train_step]") {
  const auto devices = tiny_devices();
  SGD optimizer({.lr = 1.0});
  CHECK_THROWS_AS(TrainStep(*devices, optimizer, {.grad_accum_steps = 0}), c10::ValueError);
  CHECK_THROWS_AS(TrainStep(*devices, optimizer, {.grad_clip = -1}), c10::ValueError);
  CHECK_THROWS_AS(TrainStep(*devices, optimizer, {.precision = Precision::kFp16}), c10::ValueError);
}

TEST_CASE("Mixed precision of a float64 model is refused in one line", "[train][train_step]") {
  const auto devices = DeviceReplicator::create([] {
                         TinyNet net;
                         net->out->to(at::kDouble);
                         return net;
                       }).value();
  AdamW optimizer({.lr = 1e-3});
  CHECK_THROWS_WITH(TrainStep(*devices, optimizer, {.precision = Precision::kBf16}),
                    Catch::Contains("out.weight is float64") && Catch::Contains("precision fp32"));
  const auto trainer = Trainer::create(*devices, AdamW({.lr = 1e-3}), {.precision = Precision::kBf16});
  CHECK(exit_code(trainer.status()) == ExitCode::kUsage);
  CHECK_THAT(std::string(trainer.status().message()), Catch::Contains("out.weight is float64"));
  CHECK(Trainer::create(*devices, AdamW({.lr = 1e-3}), {}).ok());
}

TEST_CASE("A loss function for another model is an error that names the model", "[train][loss]") {
  torch::nn::Linear other(8, 4);
  const LossFunction loss = make_loss_function(tiny_loss);
  CHECK_THROWS_AS(loss(*other, make_batch(torch::randn({2, 8}), torch::randint(4, {2}))), c10::TypeError);
}

TEST_CASE("A loss function may take the holder, the implementation or any module", "[train][loss]") {
  TinyNet model(0.0);
  const Batch batch = make_batch(torch::randn({2, 8}), torch::randint(4, {2}));
  const double expected = tiny_loss(model, batch).item<double>();
  const LossFunction by_impl = make_loss_function(
      [](TinyNetImpl& net, const Batch& b) { return at::cross_entropy_loss(net.forward(b["x"]), b["y"]); });
  const LossFunction by_module = make_loss_function([](torch::nn::Module& net, const Batch& b) -> LossOutput {
    return at::cross_entropy_loss(net.as<TinyNet>()->forward(b["x"]), b["y"]);
  });
  CHECK(by_impl(*model, batch).loss.item<double>() == expected);
  CHECK(by_module(*model, batch).loss.item<double>() == expected);
}

TEST_CASE("Under autocast the end of one replica's forward does not change the gradient of another", "[train][amp]") {
  // Replica 1 uses the layer a second time before replica 0 leaves autocast, or after.
  const auto weight_after = [](bool late) {
    torch::manual_seed(1);
    const auto devices =
        DeviceReplicator::create([] { return std::make_shared<torch::nn::Conv1dImpl>(8, 8, 1); }, {.cpu_replicas = 2})
            .value();
    SGD sgd({.lr = 0.1});
    TrainStep step(*devices, sgd, {.precision = Precision::kBf16});
    const Batch batch = make_batch(torch::randn({8, 8}), torch::arange(8));
    std::atomic<int> uses = 0;
    const auto loss = [&](torch::nn::Module& module, const Batch& rows) {
      auto& layer = *module.as<torch::nn::Conv1dImpl>();
      const bool is_last = rows["y"][0].item<int64_t>() > 0;
      const at::Tensor first = layer.forward(rows["x"].unsqueeze(2));
      const auto meet = [&uses](int count) {
        ++uses;
        while (uses < count) std::this_thread::yield();
      };
      meet(2);
      if (late && is_last) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      const at::Tensor second = layer.forward(first.tanh());
      if (!late) meet(4);
      return second.to(at::kFloat).square().mean();
    };
    step(batch, loss);
    return devices->module()->parameters()[0].detach().clone();
  };
  CHECK(torch::equal(weight_after(true), weight_after(false)));
}
