// Training loops on simulated devices with random stream delays: no work accesses memory that other work still uses.
// 1,000 steps each with TRAINKIT_TEST_FULL.
#include <cmath>
#include <functional>

#include "cuda_sim_control.h"
#include "test_util.h"
#include "trainkit/data/prefetcher.h"
#include "trainkit/data/tensor_dataset.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/optim/adam.h"
#include "trainkit/train/train_step.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

constexpr int64_t kRows = 96, kRowsPerStep = 12, kInputs = 20, kClasses = 4;

struct RaceNetImpl : torch::nn::Module {
  RaceNetImpl()
      : hidden(register_module("hidden", torch::nn::Linear(kInputs, 16))),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({16})))),
        drop(register_module("drop", torch::nn::Dropout(0.1))),
        out(register_module("out", torch::nn::Linear(16, kClasses))) {}
  at::Tensor forward(const at::Tensor& x) { return out(drop(norm(hidden(x)))); }
  torch::nn::Linear hidden;
  torch::nn::LayerNorm norm;
  torch::nn::Dropout drop;
  torch::nn::Linear out;
};
TORCH_MODULE(RaceNet);

/// The source of a step's rows.
enum class Feed {
  kHost,     ///< The step copies page-locked batches (DataParallel: each replica its slice).
  kDevice,   ///< The Prefetcher copies batches ahead.
  kShards,   ///< The Prefetcher copies each replica's rows ahead to its device.
  kResident  ///< All rows are on each device; batches are row indices.
};

struct Loop {
  Feed feed;
  int64_t devices;
  int workers, prefetch_factor;
  bool is_captured;

  std::string text() const {
    return std::string(is_captured ? "captured steps, " : "") +
           std::string(feed == Feed::kHost     ? "host"
                       : feed == Feed::kDevice ? "device"
                       : feed == Feed::kShards ? "shards"
                                               : "resident") +
           " feed, " + std::to_string(devices) + " devices, " + std::to_string(workers) + " workers, prefetch_factor " +
           std::to_string(prefetch_factor);
  }
};

/// All rows on each of the devices.
class Resident {
 public:
  Resident(const at::Tensor& x, const at::Tensor& y, int64_t devices) {
    for (int64_t i = 0; i < devices; ++i) {
      const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(i));
      rows_.push_back({x.to(device), y.to(device)});
    }
  }
  std::pair<at::Tensor, at::Tensor> rows(const at::Tensor& numbers) const {
    const auto& [x, y] = rows_.at(static_cast<size_t>(numbers.device().index()));
    return {x.index_select(0, numbers), y.index_select(0, numbers)};
  }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> rows_;
};

std::unique_ptr<Prefetcher> loader_of(const std::shared_ptr<const Dataset>& dataset, const Loop& loop,
                                      at::Device device) {
  return Prefetcher::create(dataset, RandomSampler(kRows, {.seed = 3}),
                            {.batch_size = kRowsPerStep,
                             .num_workers = loop.workers,
                             .prefetch_factor = loop.prefetch_factor,
                             .persistent_workers = true,
                             .pin_memory = true,
                             .device = device})
      .value();
}

/// Trains and returns the last loss.
double train(const Loop& loop, int64_t steps) {
  torch::manual_seed(7);
  const at::Tensor x = at::randn({kRows, kInputs}), y = x.slice(1, 0, kClasses).argmax(1);
  const bool is_resident = loop.feed == Feed::kResident;
  const auto dataset = std::make_shared<TensorDataset>(
      is_resident ? std::vector<std::pair<std::string, at::Tensor>>{{"row", at::arange(kRows)}}
                  : std::vector<std::pair<std::string, at::Tensor>>{{"x", x}, {"y", y}});
  const at::Device first(at::kCUDA, 0);
  const auto loader = loader_of(dataset, loop, loop.feed == Feed::kDevice ? first : at::Device(at::kCPU));
  const bool is_parallel = loop.devices > 1;
  const auto devices = DeviceReplicator::create([] { return RaceNet(); },
                                                {.strategy = is_parallel ? Strategy::kDataParallel : Strategy::kSingle,
                                                 .device = first,
                                                 .bucket_bytes = 256,
                                                 .first_bucket_bytes = 1})
                           .value();
  REQUIRE(devices->replicas() == loop.devices);
  if (loop.feed == Feed::kShards) REQUIRE(loader->use_devices({devices->device(0), devices->device(1)}));
  AdamW optimizer(AdamWOptions{.lr = 1e-3, .capturable = loop.is_captured});
  TrainStep step(*devices, optimizer,
                 {.grad_clip = 1, .cuda_graph = loop.is_captured ? CudaGraph::kOn : CudaGraph::kOff});
  const Resident resident(x, y, is_resident ? loop.devices : 0);
  const LossFunction loss = make_loss_function([&](RaceNet& model, const Batch& batch) {
    const auto [inputs, classes] = is_resident ? resident.rows(batch["row"]) : std::pair(batch["x"], batch["y"]);
    return at::cross_entropy_loss(model->forward(inputs), classes);
  });
  at::Tensor last;
  for (int64_t done = 0; done < steps;) {
    const auto batch = loader->next().value();
    if (!batch) continue;  // the end of an epoch
    last = step(is_parallel ? *batch : batch->to(first), loss).loss;
    ++done;
  }
  CHECK((step.graph_steps() > steps / 2) == loop.is_captured);
  return last.item<double>();
}

/// Copies slices to unordered streams of the devices, as an evaluation on several devices does. Checks the sums of the
/// received rows; steps are whole epochs.
void visit(const Loop& loop, int64_t steps) {
  const at::Tensor numbers = at::randint(8, {kRows, kInputs}).to(at::kFloat);  // their sums are exact
  const auto dataset = std::make_shared<TensorDataset>(std::vector<std::pair<std::string, at::Tensor>>{{"x", numbers}});
  const auto loader = loader_of(dataset, loop, at::kCPU);
  std::vector<at::Tensor> sums;
  for (int64_t i = 0; i < loop.devices; ++i) {
    sums.push_back(at::zeros({}, at::TensorOptions().device(at::kCUDA, static_cast<c10::DeviceIndex>(i))));
  }
  for (int64_t done = 0; done < steps;) {
    const auto batch = loader->next().value();
    if (!batch) continue;  // the end of an epoch
    for (int64_t i = 0; i < loop.devices; ++i) {
      for (int64_t j = 0; j < 10 * i; ++j) sums[static_cast<size_t>(i)] += 0;  // the last device is slower
      const Batch rows = batch->slice(kRowsPerStep * i / loop.devices, kRowsPerStep * (i + 1) / loop.devices);
      sums[static_cast<size_t>(i)] += rows.to(sums[static_cast<size_t>(i)].device())["x"].sum();
    }
    ++done;
  }
  double sum = 0;
  for (const at::Tensor& each : sums) sum += each.item<double>();
  CHECK(sum == numbers.sum().item<double>() * static_cast<double>(steps * kRowsPerStep / kRows));
}

void for_each_loop(Feed feed, int64_t devices, bool is_captured,
                   const std::function<void(const Loop&, int64_t steps)>& body) {
  const bool full = environment("TRAINKIT_TEST_FULL") == "1";
  const CudaSimSetting late("RANDOM_DELAY_US", "100");
  for (const int workers : {0, 2}) {
    for (const int prefetch_factor : {1, 2, 4}) {
      const Loop loop{feed, devices, workers, prefetch_factor, is_captured};
      INFO(loop.text());
      body(loop, full ? 1000 : 24);
      CHECK(take_cuda_sim_findings() == "");
    }
  }
}

void check_feed(Feed feed, int64_t devices, bool is_captured = false) {
  for_each_loop(feed, devices, is_captured,
                [](const Loop& loop, int64_t steps) { CHECK(std::isfinite(train(loop, steps))); });
}

}  // namespace

TEST_CASE("A step copies page-locked batches before they are overwritten", "[cuda_sim][race]") {
  check_feed(Feed::kHost, 1, GENERATE(false, true));
}
TEST_CASE("Batches that are copied ahead are not overwritten while a step reads them", "[cuda_sim][race]") {
  check_feed(Feed::kDevice, 1, GENERATE(false, true));
}
TEST_CASE("Row indices of resident data are not overwritten while a step reads them", "[cuda_sim][race]") {
  check_feed(Feed::kResident, 1, GENERATE(false, true));
}
TEST_CASE("Replicas copy slices of page-locked batches before they are overwritten", "[cuda_sim][race][dp]") {
  check_feed(Feed::kHost, 2);
}
TEST_CASE("Replicas read slices of batches that were copied ahead to the first device", "[cuda_sim][race][dp]") {
  check_feed(Feed::kDevice, 2);
}
TEST_CASE("Shards that are copied ahead to each device are not overwritten while replicas read them",
          "[cuda_sim][race][dp]") {
  check_feed(Feed::kShards, 2);
}
TEST_CASE("Replicas copy slices of row indices of resident data", "[cuda_sim][race][dp]") {
  check_feed(Feed::kResident, 2);
}
TEST_CASE("Slices that are copied to two devices are not overwritten during the copy", "[cuda_sim][race][slices]") {
  for_each_loop(Feed::kHost, 2, /*is_captured=*/false, visit);
}
