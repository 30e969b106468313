#include "trainkit/distributed/device_replicator.h"

#include "test_util.h"

using namespace trainkit;

TEST_CASE("A replicator is made from a module holder or a shared pointer", "[distributed][device_replicator]") {
  const auto from_holder = DeviceReplicator::create([] { return torch::nn::Linear(3, 2); }).value();
  CHECK(from_holder->module()->parameters().size() == 2);
  const auto from_pointer =
      DeviceReplicator::create([] { return std::make_shared<torch::nn::LinearImpl>(3, 2); }).value();
  CHECK(from_pointer->module()->parameters().size() == 2);
  CHECK(from_pointer->replicas() == 1);
  CHECK_THROWS_AS(from_pointer->module(1), c10::IndexError);
}

TEST_CASE("A device that is not there is an error of usage that says what is there",
          "[distributed][device_replicator]") {
  const auto made = DeviceReplicator::create([] { return torch::nn::Linear(3, 2); }, {.device = at::Device("cuda:99")});
  REQUIRE(!made.ok());
  CHECK(exit_code(made.status()) == ExitCode::kUsage);
  CHECK(error_of(made.status())->got == "cuda:99");
}

TEST_CASE("A factory that throws becomes a Status, and no module is an error", "[distributed][device_replicator]") {
  const auto thrown = DeviceReplicator::create([]() -> torch::nn::Linear { throw std::runtime_error("no weights"); });
  CHECK(thrown.status().message() == "no weights");
  const auto null = DeviceReplicator::create([] { return std::shared_ptr<torch::nn::Module>(); });
  CHECK(null.status().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("run on one device gives the gradient of the body, and passes its exception on",
          "[distributed][device_replicator]") {
  const auto devices = DeviceReplicator::create([] { return torch::nn::Linear(3, 2); }).value();
  auto* linear = devices->module()->as<torch::nn::Linear>();
  devices->run([&](int64_t replica) {
    CHECK(replica == 0);
    linear->forward(torch::ones({4, 3})).sum().backward();
  });
  CHECK(linear->weight.grad().allclose(torch::full({2, 3}, 4.0)));
  CHECK_THROWS_WITH(devices->run([](int64_t) { throw std::runtime_error("stop"); }), "stop");
}
