// DataParallel on two GPUs: rows that are copied ahead to each of them, and gradients that are summed during backward.
#include "cuda_sim/cuda_sim_control.h"
#include "test_util.h"
#include "train/loop_util.h"
#include "trainkit/data/sampler.h"
#include "trainkit/distributed/device_replicator.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

struct ThreeLayersImpl : torch::nn::Module {
  ThreeLayersImpl()
      : first(register_module("first", torch::nn::Linear(8, 16))),
        second(register_module("second", torch::nn::Linear(16, 16))),
        last(register_module("last", torch::nn::Linear(16, 4))),
        unused(register_module("unused", torch::nn::Linear(2, 2))) {}
  at::Tensor forward(const at::Tensor& x) { return last(torch::gelu(second(torch::gelu(first(x))))); }
  torch::nn::Linear first, second, last, unused;
};
TORCH_MODULE(ThreeLayers);

/// Two replicas, and one model on the CPU with the same weights.
struct Replicas {
  Replicas()
      : devices((torch::manual_seed(1),
                 DeviceReplicator::create([] { return ThreeLayers(); }, {.strategy = Strategy::kDataParallel,
                                                                         .device = at::kCUDA,
                                                                         .gpu_ids = {0, 1},
                                                                         .bucket_bytes = 1,
                                                                         .first_bucket_bytes = 1})
                     .value())),
        model((torch::manual_seed(1), ThreeLayers())) {}

  ThreeLayersImpl& replica(int64_t i) { return *devices->module(i)->as<ThreeLayersImpl>(); }

  /// Forward and backward of `x`, half of the rows on each replica.
  void run(const at::Tensor& x) {
    for (int64_t i = 0; i < 2; ++i) replica(i).zero_grad();
    devices->run([&](int64_t i) { return replica(i).forward(half(x, i)).square().sum(); });
  }

  at::Tensor half(const at::Tensor& x, int64_t i) const {
    return x.chunk(2)[static_cast<size_t>(i)].to(devices->device(i));
  }

  /// Checks the gradients of both replicas against those of the model on the CPU for `rows`.
  void check_gradients(const at::Tensor& rows) {
    model->zero_grad();
    model->forward(rows).square().sum().backward();
    for (const auto& parameter : model->named_parameters()) {
      INFO(parameter.key());
      const at::Tensor expected = parameter.value().grad();
      const at::Tensor first = replica(0).named_parameters()[parameter.key()].grad();
      const at::Tensor second = replica(1).named_parameters()[parameter.key()].grad();
      CHECK(first.defined() == expected.defined());
      CHECK(second.defined() == expected.defined());
      if (!first.defined()) continue;
      CHECK(torch::allclose(first.cpu(), expected, 1e-4, 1e-5));
      CHECK(torch::equal(first.cpu(), second.cpu()));
    }
  }

  std::unique_ptr<DeviceReplicator> devices;
  ThreeLayers model;
};

bool has_two_gpus() { return torch::cuda::device_count() >= 2; }

int64_t nccl_groups() { return cuda_sim_counts()["nccl_groups"].get<int64_t>(); }

}  // namespace

TEST_CASE("Gradients of late layers are summed before backward has reached the first layer",
          "[train][data_parallel_cuda]") {
  if (!has_cuda_sim() || !has_two_gpus()) TRAINKIT_SKIP("needs two simulated devices");
  Replicas replicas;
  const at::Tensor x = at::randn({6, 8});
  replicas.run(x);  // records the order of the gradients
  replicas.check_gradients(x);
  // Each replica waits in its first layer, so that the other one computes its late layers meanwhile.
  std::atomic<int64_t> before{0}, sums_seen{0};
  for (int64_t i = 0; i < 2; ++i) {
    replicas.replica(i).first->weight.register_hook([&](const at::Tensor&) -> void {
      for (int tries = 0; tries < 1000 && nccl_groups() < before + 4; ++tries)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      if (nccl_groups() >= before + 4) ++sums_seen;  // two layers of two parameters
    });
  }
  before = nccl_groups();
  replicas.run(x);
  CHECK(sums_seen == 2);
  CHECK(nccl_groups() == before + 6);
  replicas.check_gradients(x);
  CHECK(take_cuda_sim_findings() == "");
}

TEST_CASE("A replica without rows adds nothing to the gradients", "[train][data_parallel_cuda]") {
  if (!has_two_gpus()) TRAINKIT_SKIP("needs two GPUs");
  Replicas replicas;
  const at::Tensor x = at::randn({6, 8});
  for (const int64_t empty : {0, 1, 1, 0}) {
    for (int64_t i = 0; i < 2; ++i) replicas.replica(i).zero_grad();
    replicas.devices->run([&](int64_t i) {
      return i == empty ? at::Tensor() : replicas.replica(i).forward(x.to(replicas.devices->device(i))).square().sum();
    });
    replicas.check_gradients(x);
    replicas.run(x);
    replicas.check_gradients(x);
  }
}

TEST_CASE("The step after one that failed on a replica has right gradients", "[train][data_parallel_cuda]") {
  if (!has_two_gpus()) TRAINKIT_SKIP("needs two GPUs");
  Replicas replicas;
  const at::Tensor x = at::randn({6, 8});
  for (int step = 0; step < 3; ++step) {
    CHECK_THROWS_AS(replicas.devices->run([&](int64_t i) {
      const at::Tensor y = replicas.replica(i).forward(replicas.half(x, i));
      if (i == 1) y.register_hook([](const at::Tensor&) -> void { throw std::runtime_error("of a test"); });
      return y.square().sum();
    }),
                    std::runtime_error);
    replicas.run(x);
    replicas.check_gradients(x);
  }
}

TEST_CASE("Gradients of several runs are summed once", "[train][data_parallel_cuda]") {
  if (!has_two_gpus()) TRAINKIT_SKIP("needs two GPUs");
  Replicas replicas;
  const at::Tensor x = at::randn({12, 8});
  for (int step = 0; step < 3; ++step) {
    for (int64_t i = 0; i < 2; ++i) replicas.replica(i).zero_grad();
    for (int64_t part = 0; part < 2; ++part) {
      const at::Tensor rows = x.chunk(2)[static_cast<size_t>(part)];
      replicas.devices->run(
          [&](int64_t i) { return replicas.replica(i).forward(replicas.half(rows, i)).square().sum(); },
          /*reduce_gradients=*/part == 1);
    }
    replicas.check_gradients(x);
  }
}

TEST_CASE("The rows of each replica are on its device before the step", "[train][data_parallel_cuda]") {
  if (!has_cuda_sim() || !has_two_gpus()) TRAINKIT_SKIP("needs two simulated devices");
  const auto loader =
      Prefetcher::create(tiny_dataset(23), SequentialSampler(23), {.batch_size = 5, .num_workers = 1}).value();
  const std::vector<at::Device> devices = {{at::kCUDA, 0}, {at::kCUDA, 1}};
  REQUIRE(loader->use_devices(devices));
  int64_t row = 0;
  while (const auto batch = loader->next().value()) {
    const auto copies = cuda_sim_counts()["to_device"].get<int64_t>();
    for (int64_t i = 0; i < 2; ++i) {
      const Batch shard = batch->shard(i, 2, devices[static_cast<size_t>(i)]);
      CHECK(cuda_sim_counts()["to_device"].get<int64_t>() == copies);
      CHECK(shard["x"].device() == devices[static_cast<size_t>(i)]);
      CHECK(shard.row_indices().front() == row);
      CHECK(torch::equal(shard["x"].cpu(), batch->slice(i == 0 ? 0 : batch->size() / 2,
                                                        i == 0 ? batch->size() / 2 : batch->size())["x"]));
      row += shard.size();
    }
    CHECK((*batch)["x"].is_cpu());
    CHECK(batch->shard(1, 3, devices[1])["x"].device() == devices[1]);  // parts that were not copied ahead
  }
  CHECK(row == 23);
  CHECK(take_cuda_sim_findings() == "");
}
