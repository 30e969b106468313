#include "trainkit/app/predictor.h"

#include <ATen/Functions.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <thread>

#include "data/test_datasets.h"
#include "test_util.h"
#include "trainkit/core/fs.h"
#include "trainkit/data/tensor_dataset.h"
#include "trainkit/io/safetensors.h"
#include "trainkit/train/checkpoint.h"
#include "trainkit/train/weights.h"

using namespace trainkit;
using namespace trainkit::test;
namespace fs = std::filesystem;

namespace {

/// A model that gives other values in training mode.
struct Net : torch::nn::Module {
  Net() {
    register_module("linear", linear);
    register_module("norm", norm);
    register_module("dropout", dropout);
  }
  at::Tensor forward(const at::Tensor& x) { return dropout->forward(norm->forward(linear->forward(x))); }
  torch::nn::Linear linear{7, 5};
  torch::nn::BatchNorm1d norm{5};
  torch::nn::Dropout dropout{0.5};
};

std::shared_ptr<Net> make_net(float value) {
  auto net = std::make_shared<Net>();
  const c10::InferenceMode guard(false);
  torch::NoGradGuard no_grad;
  net->linear->weight.fill_(value).mul_(at::arange(7).to(at::kFloat));
  net->norm->running_mean.fill_(value);
  return net;
}

void save_checkpoint(const std::string& run, int64_t step, float value) {
  auto store = CheckpointStore::open(run, {}).value();
  const auto net = make_net(value);
  REQUIRE(store.save(step, {.model = named_tensors(*net), .optimizer = {}, .state = {}}).ok());
}

void save_best(const std::string& run, int64_t step, float value) {
  REQUIRE(save_safetensors(Fs::posix(), run + "/best.safetensors", named_tensors(*make_net(value)),
                           {{"step", std::to_string(step)}})
              .ok());
}

/// A run with checkpoints of steps 10 (weights 1) and 20 (weights 2).
struct RunPlace {
  RunPlace() {
    fs::create_directory(run);
    std::ofstream(run + "/config.yaml") << "# none\n";
    save_checkpoint(run, 10, 1);
    save_checkpoint(run, 20, 2);
  }
  TempDir dir;
  std::string run = dir / "run";
};

std::shared_ptr<const Dataset> rows(int64_t count) {
  at::manual_seed(3);
  return std::make_shared<TensorDataset>(std::vector<std::pair<std::string, at::Tensor>>{{"x", at::randn({count, 7})}});
}

Predictor open(const std::string& path, const PredictorOptions& options = {}) {
  auto predictor = Predictor::open(
      path, [] { return make_net(0); }, options);
  if (!predictor.ok()) throw std::runtime_error(error_line(predictor.status()));
  return *std::move(predictor);
}

at::Tensor forward(Net& net, const Batch& batch) { return net.forward(batch["x"]); }

/// All outputs, in the order of take().
at::Tensor outputs(const Predictor& predictor, const std::shared_ptr<const Dataset>& data) {
  std::vector<at::Tensor> all;
  const auto bad = predictor.run(
      data, [](Net& net, const Batch& batch) { return forward(net, batch); },
      [&](const Batch&, const at::Tensor& output) {
        all.push_back(output.clone());
        return absl::OkStatus();
      });
  REQUIRE(bad.ok());
  return at::cat(all);
}

}  // namespace

TEST_CASE("A run gives its best weights, else those of its latest checkpoint, and says which", "[app][predictor]") {
  const RunPlace place;
  const RunWeights latest = find_weights(place.run + "/").value();
  CHECK(latest.step == 20);
  CHECK_FALSE(latest.is_best);
  CHECK(latest.describe() ==
        "weights of step 20, a checkpoint (" + place.run + "/checkpoints/step-00000020/model.safetensors)");
  CHECK(find_weights(place.run + "/checkpoints/step-00000010").value().step == 10);

  save_best(place.run, 15, 3);
  const RunWeights best = find_weights(place.run).value();
  CHECK(best.step == 15);
  CHECK(best.describe() == "weights of step 15, the best in validation (" + place.run + "/best.safetensors)");
  CHECK(find_weights(place.run + "/checkpoints").value().step == 20);
  CHECK(find_weights(place.run + "/checkpoints").value().run == place.run);
  CHECK(find_weights(place.run + "/checkpoints/latest").value().step == 20);
  CHECK(find_weights(place.run + "/checkpoints/latest").value().run == place.run);
  CHECK(open(place.run).model().as<Net>()->linear->weight[0][1].item<float>() == 3);
}

TEST_CASE("Folders without a run or without weights are refused with exit code 5", "[app][predictor]") {
  const RunPlace place;
  fs::create_directories(place.dir / "empty");
  fs::create_directories(place.dir / "started");
  std::ofstream(place.dir / "started" + "/config.yaml") << "# none\n";
  const std::pair<std::string, std::string> cases[] = {
      {place.dir / "absent", "run.none"}, {place.dir / "empty", "run.none"}, {place.dir / "started", "run.weights"}};
  for (const auto& [path, id] : cases) {
    const absl::Status status = find_weights(path).status();
    INFO(status);
    CHECK(id_of(status) == id);
    CHECK(exit_code(status) == ExitCode::kWeights);
  }
}

TEST_CASE("Damaged weights and weights of another model are refused", "[app][predictor]") {
  const RunPlace place;
  const auto other = Predictor::open(place.run, [] { return torch::nn::Linear(3, 3); });
  CHECK(exit_code(other.status()) == ExitCode::kWeights);
  const std::string file = find_weights(place.run).value().file;
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).seekp(-1, std::ios::end).put('x');
  CHECK(exit_code(Predictor::open(place.run, [] { return make_net(0); }).status()) == ExitCode::kWeights);
}

TEST_CASE("The model runs in evaluation mode, without gradients, in the order of the data set", "[app][predictor]") {
  const RunPlace place;
  const Predictor predictor = open(place.run, {.loader = {.batch_size = 4, .num_workers = 2}});
  CHECK_FALSE(predictor.model().is_training());
  const auto data = rows(11);
  std::vector<int64_t> order;
  const auto bad = predictor.run(
      data,
      [](Net& net, const Batch& batch) {
        at::Tensor output = forward(net, batch);
        CHECK_FALSE(output.requires_grad());
        return output;
      },
      [&](const Batch& batch, const at::Tensor& output) {
        CHECK(output.size(0) == batch.size());
        order.insert(order.end(), batch.row_indices().begin(), batch.row_indices().end());
        return absl::OkStatus();
      });
  REQUIRE(bad.ok());
  CHECK(bad->empty());
  CHECK(order == std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  CHECK(at::equal(outputs(predictor, data), outputs(predictor, data)));
}

TEST_CASE("Any number of logical replicas gives the bits of one", "[app][predictor]") {
  const RunPlace place;
  const auto data = rows(101);
  const at::Tensor one = outputs(open(place.run, {.loader = {.batch_size = 8}}), data);
  REQUIRE(one.size(0) == 101);
  for (const size_t replicas : {2, 3, 7}) {
    const PredictorOptions options{.devices = std::vector<at::Device>(replicas, at::kCPU),
                                   .loader = {.batch_size = 8, .num_workers = 1}};
    CHECK(at::equal(outputs(open(place.run, options), data), one));
  }
}

TEST_CASE("Unreadable rows are left out and listed, on any number of replicas", "[app][predictor]") {
  const RunPlace place;
  const auto data = hooked(20, [](const RowKey& key) {
    if (key.index == 3 || key.index == 9) throw std::runtime_error("no good");
  });
  for (const size_t replicas : {1, 2}) {
    const Predictor predictor = open(place.run, {.devices = std::vector<at::Device>(replicas, at::kCPU),
                                                 .loader = {.batch_size = 4, .on_error = OnError::kSkip}});
    std::vector<std::vector<int64_t>> parts;
    const auto bad = predictor.run(
        data, [](Net&, const Batch& batch) { return batch["y"]; },
        [&](const Batch& batch, const at::Tensor& output) {
          parts.emplace_back(batch.row_indices().begin(), batch.row_indices().end());
          CHECK(output.equal(at::tensor(parts.back(), at::kLong)));
          return absl::OkStatus();
        });
    REQUIRE(bad.ok());
    REQUIRE(bad->size() == 2);
    CHECK(bad->at(0).name == "file3.jpg");
    CHECK(bad->at(1).index == 9);
    CHECK(parts ==
          std::vector<std::vector<int64_t>>{{0, 1, 2}, {4, 5, 6, 7}, {8, 10, 11}, {12, 13, 14, 15}, {16, 17, 18, 19}});
  }
}

TEST_CASE("An error of the receiver ends the prediction, and progress reaches all rows", "[app][predictor]") {
  const RunPlace place;
  std::vector<std::pair<int64_t, int64_t>> progress;
  PredictorOptions options{.loader = {.batch_size = 4}};
  options.on_progress = [&](int64_t done, int64_t total) { progress.emplace_back(done, total); };
  const Predictor predictor = open(place.run, options);
  outputs(predictor, rows(10));
  CHECK(progress == std::vector<std::pair<int64_t, int64_t>>{{4, 10}, {8, 10}, {10, 10}});
  int calls = 0;
  const auto ended = predictor.run(
      rows(10), [](Net& net, const Batch& batch) { return forward(net, batch); },
      [&](const Batch&, const at::Tensor&) {
        return ++calls == 2 ? absl::UnavailableError("full") : absl::OkStatus();
      });
  CHECK(ended.status().message() == "full");
  CHECK(calls == 2);
}
