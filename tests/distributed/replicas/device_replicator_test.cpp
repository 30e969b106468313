#include "trainkit/distributed/device_replicator.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>

#include "core/machine/parallel.h"
#include "distributed/rank_threads.h"
#include "test_util.h"
#include "thread_count.h"
#include "trainkit/core/error.h"

using namespace trainkit;
using namespace trainkit::test;

TEST_CASE("A replicator is created from a module holder or a shared pointer", "[distributed][device_replicator]") {
  const auto from_holder = DeviceReplicator::create([] { return torch::nn::Linear(3, 2); }).value();
  CHECK(from_holder->module()->parameters().size() == 2);
  const auto from_pointer =
      DeviceReplicator::create([] { return std::make_shared<torch::nn::LinearImpl>(3, 2); }).value();
  CHECK(from_pointer->module()->parameters().size() == 2);
  CHECK(from_pointer->replicas() == 1);
  CHECK_THROWS_AS(from_pointer->module(1), c10::IndexError);
}

TEST_CASE("A missing device is a usage error that lists the available ones", "[distributed][device_replicator]") {
  const auto made = DeviceReplicator::create([] { return torch::nn::Linear(3, 2); }, {.device = at::Device("cuda:99")});
  REQUIRE(!made.ok());
  CHECK(exit_code(made.status()) == ExitCode::kUsage);
  CHECK(error_of(made.status())->got == "cuda:99");
}

TEST_CASE("A factory that throws becomes a Status, and a null module is an error", "[distributed][device_replicator]") {
  const auto thrown = DeviceReplicator::create([]() -> torch::nn::Linear { throw std::runtime_error("no weights"); });
  CHECK(thrown.status().message() == "error[user.exception] the model factory threw std::runtime_error: no weights");
  CHECK(exit_code(thrown.status()) == ExitCode::kUsage);
  const auto null = DeviceReplicator::create([] { return std::shared_ptr<torch::nn::Module>(); });
  CHECK(null.status().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("run on one device gives the gradient of the loss, and rethrows the body's exception",
          "[distributed][device_replicator]") {
  const auto devices = DeviceReplicator::create([] { return torch::nn::Linear(3, 2); }).value();
  auto* linear = devices->module()->as<torch::nn::Linear>();
  devices->run([&](int64_t replica) {
    CHECK(replica == 0);
    return linear->forward(torch::ones({4, 3})).sum();
  });
  CHECK(linear->weight.grad().allclose(torch::full({2, 3}, 4.0)));
  CHECK_THROWS_WITH(devices->run([](int64_t) -> at::Tensor { throw std::runtime_error("stop"); }), "stop");
}

TEST_CASE("Replicas start with equal weights, and the factory draws random numbers once only",
          "[distributed][device_replicator]") {
  torch::manual_seed(4);
  const auto single = DeviceReplicator::create([] { return torch::nn::Linear(3, 2); }).value();
  const at::Tensor next = torch::rand({3});
  for (const bool share : {true, false}) {
    torch::manual_seed(4);
    const auto devices =
        DeviceReplicator::create([] { return torch::nn::Linear(3, 2); }, {.cpu_replicas = 3, .share_weights = share})
            .value();
    CHECK(torch::rand({3}).equal(next));
    CHECK(devices->replicas() == 3);
    CHECK(devices->world_replicas() == 3);
    CHECK(devices->weight_copies() == (share ? 1 : 3));
    for (int64_t replica = 0; replica < 3; ++replica) {
      const at::Tensor weight = devices->module(replica)->parameters()[0];
      CHECK(weight.equal(single->module()->parameters()[0]));
      CHECK((weight.data_ptr() == devices->module()->parameters()[0].data_ptr()) == (share || replica == 0));
    }
  }
}

TEST_CASE("Replicas run concurrently in separate threads, with the caller's grad mode",
          "[distributed][device_replicator]") {
  const auto devices = DeviceReplicator::create([] { return torch::nn::Linear(3, 2); }, {.cpu_replicas = 3}).value();
  std::atomic<int> here = 0, without_grad = 0;
  std::vector<std::thread::id> ids(3);
  const torch::NoGradGuard no_grad;
  devices->run(
      [&](int64_t replica) {
        ids[static_cast<size_t>(replica)] = std::this_thread::get_id();
        ++here;
        while (here < 3) std::this_thread::yield();  // hangs if the replicas run in turn
        without_grad += torch::GradMode::is_enabled() ? 0 : 1;
        return at::Tensor();
      },
      false);
  CHECK(without_grad == 3);
  CHECK(std::set<std::thread::id>(ids.begin(), ids.end()).size() == 3);
  CHECK(std::count(ids.begin(), ids.end(), std::this_thread::get_id()) == 0);
}

TEST_CASE("The exception that came first is thrown on, not those of replicas that waited for it",
          "[distributed][device_replicator]") {
  const auto devices = DeviceReplicator::create([] { return torch::nn::Linear(2, 1); }, {.cpu_replicas = 3}).value();
  const auto run = [&] {
    devices->run([&](int64_t replica) -> at::Tensor {
      if (replica == 2) throw std::runtime_error("replica 2 fails");
      at::Tensor sum = torch::ones({1});
      devices->group().all_reduce(replica, sum);  // waits for replica 2
      return {};
    });
  };
  CHECK_THROWS_WITH(run(), "replica 2 fails");
}

TEST_CASE("An exception of one replica is thrown on when all are done, and the next run works",
          "[distributed][device_replicator]") {
  const auto devices = DeviceReplicator::create([] { return torch::nn::Linear(3, 2); }, {.cpu_replicas = 4}).value();
  std::atomic<int> done = 0;
  CHECK_THROWS_WITH(devices->run([&](int64_t replica) -> at::Tensor {
    if (replica == 2) throw std::runtime_error("replica 2 fails");
    ++done;
    return {};
  }),
                    "replica 2 fails");
  CHECK(done == 3);
  devices->run([&](int64_t replica) {
    return devices->module(replica)->as<torch::nn::Linear>()->forward(torch::ones({1, 3})).sum();
  });
  CHECK(devices->module()->parameters()[0].grad().equal(torch::full({2, 3}, 4.0)));
}

TEST_CASE("Replicas that cannot be created are usage errors", "[distributed][device_replicator]") {
  const auto create = [](const DeviceReplicatorOptions& options) {
    return DeviceReplicator::create([] { return torch::nn::Linear(3, 2); }, options).status();
  };
  CHECK(exit_code(create({.strategy = Strategy::kDataParallel, .cpu_replicas = 0})) == ExitCode::kUsage);
  CHECK(exit_code(create({.strategy = Strategy::kDistributed})) == ExitCode::kUsage);
  CHECK(exit_code(create({.device = at::kCUDA, .gpu_ids = {98, 99}})) == ExitCode::kUsage);
  CHECK(create({.strategy = Strategy::kDataParallel, .cpu_replicas = 1}).ok());
  const absl::Status shards = create({.cpu_replicas = 2, .sharding = Sharding::kOptimizer});
  CHECK(exit_code(shards) == ExitCode::kUsage);
  CHECK_THAT(error_line(shards),
             Catch::Contains("--shard: replicas on the CPU share one optimizer, whose state cannot be divided "
                             "(got 'dp', expected ddp)"));
}

TEST_CASE("Ranks accumulate gradients in their buckets, and sum them in the layout of the weights",
          "[distributed][device_replicator]") {
  const int port = free_port();
  const at::Tensor factors = torch::arange(54).to(torch::kFloat).view({3, 2, 3, 3});
  std::vector<at::Tensor> sums(2);
  std::vector<char> is_once(2);
  const auto work = [&](int64_t rank) {
    const std::shared_ptr<ProcessGroup> group =
        ProcessGroup::create(launch_of(rank, 2, port), {.timeout = std::chrono::seconds(20)}).value();
    const auto devices = DeviceReplicator::create(
                             [] {
                               torch::nn::Conv2d conv(torch::nn::Conv2dOptions(2, 3, 3));
                               conv->weight.set_data(conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
                               return conv;
                             },
                             {.device = at::kCPU, .process_group = group})
                             .value();
    const auto parameters = devices->module()->named_parameters();
    const at::Tensor &weight = parameters["weight"], &bias = parameters["bias"];
    const auto loss = [&] { return (weight * factors).sum() * (rank + 1) + bias.sum(); };
    devices->run([&](int64_t) { return loss(); }, /*reduce_gradients=*/false);
    is_once[static_cast<size_t>(rank)] = weight.grad().is_alias_of(bias.grad());
    // The second rank has no row in the last micro-batch.
    devices->run([&](int64_t) { return rank == 0 ? loss() : at::Tensor(); }, /*reduce_gradients=*/true);
    sums[static_cast<size_t>(rank)] = weight.grad().clone();
  };
  std::thread second(work, 1);
  work(0);
  second.join();
  CHECK((is_once[0] && is_once[1]));
  for (const at::Tensor& sum : sums) CHECK(torch::equal(sum, 4 * factors));
}

TEST_CASE("Replicas on the CPU start an idle team, which lets LibTorch's waiting threads sleep",
          "[distributed][device_replicator]") {
#if defined(__SANITIZE_THREAD__)
  TRAINKIT_SKIP("ThreadSanitizer does not see OpenMP's synchronisation: kernels run on one thread");
#endif
  unsetenv("OMP_WAIT_POLICY");  // libgomp has read it already
  unsetenv("GOMP_SPINCOUNT");
  const int before = at::get_num_threads();
  at::set_num_threads(2);
  trainkit::detail::parallel_for(0, 4, 1, [](int64_t, int64_t) {});
  const auto alone = settled_thread_count();
  {
    const auto one = DeviceReplicator::create([] { return torch::nn::Linear(3, 2); }).value();
    CHECK(thread_count() == alone);
    const auto two = DeviceReplicator::create([] { return torch::nn::Linear(3, 2); }, {.cpu_replicas = 2}).value();
    while (thread_count() < alone + 4) std::this_thread::yield();  // two replicas, the owner of the team and its member
  }
  while (thread_count() > alone) std::this_thread::yield();  // its member ends after its owner
  at::set_num_threads(before);
}
