// evaluate() and the lines that a long evaluation prints.
#include "trainkit/train/evaluate.h"

#include "test_util.h"
#include "train/batch_norm_net.h"
#include "train/loop_util.h"
#include "train/run/validation.h"
#include "train/trainer_run.h"

using namespace trainkit;
using namespace trainkit::test;

TEST_CASE("evaluate averages over all rows in evaluation mode and restores the mode", "[train][evaluate]") {
  torch::manual_seed(2);
  auto devices = DeviceReplicator::create([] { return TinyNet(0.5); }).value();
  devices->module()->train();
  TinyNet model(std::dynamic_pointer_cast<TinyNetImpl>(devices->module()));
  const auto dataset = tiny_dataset(10);
  auto ragged = Prefetcher::create(dataset, SequentialSampler(10), {.batch_size = 4}).value();
  auto whole = Prefetcher::create(dataset, SequentialSampler(10), {.batch_size = 10}).value();
  const LossFunction loss = make_loss_function(tiny_loss);
  const double in_parts = evaluate(*devices, *ragged, loss).value().at("loss");
  CHECK(devices->module()->is_training());
  CHECK(in_parts == Approx(evaluate(*devices, *whole, loss).value().at("loss")).epsilon(1e-6));
  CHECK(in_parts == evaluate(*devices, *ragged, loss).value().at("loss"));
}

TEST_CASE("evaluate restores the mode of each part of a model, and evaluates all of them", "[train][evaluate]") {
  for (const bool trains : {true, false}) {
    CAPTURE(trains);
    auto devices = DeviceReplicator::create([] { return SyncNormNet(); }).value();
    SyncNormNet model(std::dynamic_pointer_cast<SyncNormNetImpl>(devices->module()));
    model->train(trains);
    model->norm->train(!trains);
    const at::Tensor mean = model->norm->running_mean.clone();
    auto loader = Prefetcher::create(tiny_dataset(10), SequentialSampler(10), {.batch_size = 5}).value();
    REQUIRE(evaluate(*devices, *loader, make_loss_function([](SyncNormNet& net, const Batch& batch) {
              CHECK(!net->norm->is_training());
              return at::cross_entropy_loss(net->forward(batch["x"]), batch["y"]);
            })).ok());
    CHECK(model->is_training() == trains);
    CHECK(model->norm->is_training() == !trains);
    CHECK(torch::equal(model->norm->running_mean, mean));
  }
}

TEST_CASE("A model may keep a tensor that it made in an evaluation for later steps", "[train][evaluate]") {
  auto devices = DeviceReplicator::create([] { return TinyNet(); }).value();
  auto loader = Prefetcher::create(tiny_dataset(10), SequentialSampler(10), {.batch_size = 5}).value();
  at::Tensor kept;
  REQUIRE(evaluate(*devices, *loader, make_loss_function([&](TinyNet& net, const Batch& batch) {
            kept = at::ones({4});
            return (net->forward(batch["x"]) * kept).sum();
          })).ok());
  TinyNet model(std::dynamic_pointer_cast<TinyNetImpl>(devices->module()));
  (model->forward(at::ones({2, 8})) * kept).sum().backward();
  CHECK(model->out->weight.grad().defined());
}

TEST_CASE("fit refuses the training's loader as that of the evaluation", "[train][evaluate]") {
  auto devices = DeviceReplicator::create([] { return TinyNet(); }).value();
  auto loader = Prefetcher::create(tiny_dataset(10), SequentialSampler(10), {.batch_size = 5}).value();
  auto trainer = Trainer::create(*devices, AdamW(), {.max_steps = 4}).value();
  const auto result = trainer.fit(*loader, tiny_loss, {.validation = loader.get()});
  CHECK(exit_code(result.status()) == ExitCode::kUsage);
  CHECK_THAT(std::string(result.status().message()), Catch::Contains("validation"));
}

TEST_CASE("evaluate reports each batch, with one replica and with several", "[train][evaluate]") {
  for (const int64_t replicas : {1, 2}) {
    auto devices = DeviceReplicator::create([] { return TinyNet(); }, {.cpu_replicas = replicas}).value();
    auto loader = Prefetcher::create(tiny_dataset(10), SequentialSampler(10), {.batch_size = 4}).value();
    std::vector<std::pair<int64_t, int64_t>> calls;
    const auto count = [&](int64_t done, int64_t total) { calls.emplace_back(done, total); };
    REQUIRE(evaluate(*devices, *loader, make_loss_function(tiny_loss), Precision::kFp32, count).ok());
    CHECK(calls == std::vector<std::pair<int64_t, int64_t>>{{1, 3}, {2, 3}, {3, 3}});
  }
}

TEST_CASE("A long evaluation prints a line every ten seconds, a short one none", "[train][evaluate]") {
  RecordingLogger logger;
  double now = 100;
  const EvaluationProgress progress = progress_lines(logger, 7, [&] { return now; });
  for (int64_t batch = 1; batch <= 100; ++batch) {
    now += 0.25;
    progress(batch, 100);
  }
  CHECK(logger.lines == std::vector<std::string>{"evaluation after step 7: 40% (40/100 batches), 0:15 left",
                                                 "evaluation after step 7: 80% (80/100 batches), 0:05 left"});
  logger.lines.clear();
  const EvaluationProgress quick = progress_lines(logger, 8, [&] { return now; });
  for (int64_t batch = 1; batch <= 100; ++batch) quick(batch, 100);
  CHECK(logger.lines.empty());
}

TEST_CASE("evaluate refuses two metrics of the same name", "[train][evaluate]") {
  for (const int64_t replicas : {1, 2}) {
    for (const auto& names : {std::pair("loss", "f1"), {"f1", "f1"}}) {
      CAPTURE(replicas, names.first);
      auto devices = DeviceReplicator::create([] { return TinyNet(); }, {.cpu_replicas = replicas}).value();
      auto loader = Prefetcher::create(tiny_dataset(10), SequentialSampler(10), {.batch_size = 4}).value();
      const LossFunction loss = make_loss_function([&](TinyNet& model, const Batch& batch) {
        LossOutput output(tiny_loss(model, batch));
        output.metrics = {{names.first, torch::ones({})}, {names.second, torch::zeros({})}};
        return output;
      });
      const absl::Status status = evaluate(*devices, *loader, loss).status();
      CHECK(exit_code(status) == ExitCode::kData);
      CHECK_THAT(error_text(status), Catch::Contains("two metrics have the same name"));
      CHECK(devices->module()->is_training());
    }
  }
}
