// Shares of losses in the gradient of a step.
#include "train/losses/loss_weights.h"

#include <torch/torch.h>

#include "test_util.h"
#include "train/loop_util.h"
#include "train/retry/memory_recovery.h"

using namespace trainkit;
using namespace trainkit::test;
using trainkit::detail::LossWeights;
using trainkit::detail::MemoryRecovery;

namespace {

std::unique_ptr<DeviceReplicator> replicas(int64_t count) {
  return DeviceReplicator::create([] { return TinyNet(0); }, {.cpu_replicas = count}).value();
}

}  // namespace

TEST_CASE("One replica estimates the weight of a step from its first micro-batch that counts",
          "[train][loss_weights]") {
  const auto devices = replicas(1);
  MemoryRecovery memory(at::kCPU, nullptr);
  LossWeights weights(*devices, /*micro_batches=*/3, memory);
  weights.begin();
  CHECK(weights.share_of(0, 0, 1).share == 0);
  CHECK(weights.share_of(0, 4, 1).share == 4.0 / 12);
  weights.add(4);
  CHECK(weights.share_of(0, 2, 1).share == 2.0 / 12);
  weights.add(2);
  CHECK(weights.sum() == 6);
  CHECK(weights.expected() == 12);
  CHECK(weights.unit() == 0);
  weights.clear();
  CHECK(weights.share_of(0, 5, /*split=*/2).share == 5.0 / 30);  // a half of the first batch
}

TEST_CASE("A weight of 1e30 times the estimate is refused", "[train][loss_weights]") {
  const auto devices = replicas(1);
  MemoryRecovery memory(at::kCPU, nullptr);
  LossWeights weights(*devices, 2, memory);
  static_cast<void>(weights.share_of(0, 1, 1));
  weights.add(1);
  CHECK_NOTHROW(weights.share_of(0, 1e30, 1));
  CHECK_THROWS_AS(weights.share_of(0, 1e31, 1), c10::ValueError);
}

TEST_CASE("Replicas agree once on the mean weight of their first batches", "[train][loss_weights]") {
  const auto devices = replicas(2);
  MemoryRecovery memory(at::kCPU, nullptr);
  LossWeights weights(*devices, 1, memory);
  weights.begin();
  std::array<LossWeights::Share, 2> shares;
  const auto share_of = [&](double first, double second) {
    devices->run([&](int64_t replica) {
      shares[static_cast<size_t>(replica)] = weights.share_of(replica, replica == 0 ? first : second, 1);
      return at::Tensor();
    });
  };
  share_of(3, 5);
  CHECK(shares[0].unit == 4);
  CHECK(shares[0].share == 3.0 / 8);
  CHECK(shares[1].share == 5.0 / 8);
  CHECK(weights.expected() == 8);
  weights.set_unit(shares[0].unit);
  share_of(2, 2);  // the unit stays
  CHECK(shares[1].share == 2.0 / 8);
  weights.restart();
  CHECK(weights.unit() == 0);
}
