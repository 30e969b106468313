// Losses of the replicas' rows.
#include "train/losses/replica_losses.h"

#include <torch/torch.h>

#include "test_util.h"
#include "train/batch_norm_net.h"
#include "train/loop_util.h"
#include "train/losses/loss_weights.h"
#include "train/retry/memory_recovery.h"

using namespace trainkit;
using namespace trainkit::test;
using trainkit::detail::LossWeights;
using trainkit::detail::MemoryRecovery;
using trainkit::detail::ReplicaLosses;

namespace {

struct Forward {
  explicit Forward(int64_t replicas, const TrainStepOptions& options = {})
      : devices((torch::manual_seed(1),
                 DeviceReplicator::create([] { return TinyNet(0); }, {.cpu_replicas = replicas}).value())),
        weights(*devices, options.grad_accum_steps, memory),
        losses(trainkit::detail::strategy_of(*devices), options, weights, scaler) {}

  std::vector<at::Tensor> run(const Batch& batch, const LossFunction& loss) {
    std::vector<at::Tensor> scaled(static_cast<size_t>(devices->replicas()));
    losses.begin(loss);
    devices->run([&](int64_t replica) {
      scaled[static_cast<size_t>(replica)] = losses.scaled_loss(replica, {batch, loss, 1, 1});
      return at::Tensor();
    });
    return scaled;
  }

  std::unique_ptr<DeviceReplicator> devices;
  MemoryRecovery memory{at::kCPU, nullptr};
  GradScaler scaler{{.enabled = false}};
  LossWeights weights;
  ReplicaLosses losses;
};

const LossFunction kTinyLoss = make_loss_function(tiny_loss);

}  // namespace

TEST_CASE("Each replica gets its rows, and its loss counts by their share", "[train][replica_losses]") {
  const Batch batch = random_batch(5, 1);
  Forward one(1), two(2);
  const auto whole = one.run(batch, kTinyLoss);
  const auto parts = two.run(batch, kTinyLoss);
  CHECK(one.losses.results()[0].share == 1);
  CHECK(two.losses.results()[0].weight == 2);
  CHECK(two.losses.results()[1].weight == 3);
  CHECK((parts[0] + parts[1]).item<float>() == Approx(whole[0].item<float>()));
}

TEST_CASE("A replica without rows, or whose rows do not count, has no loss", "[train][replica_losses]") {
  Forward two(2);
  const auto scaled = two.run(random_batch(1, 1), kTinyLoss);
  CHECK_FALSE(scaled[0].defined());
  CHECK_FALSE(two.losses.results()[0].output.has_value());
  CHECK(scaled[1].defined());
  const LossFunction nothing = make_loss_function([](TinyNet& model, const Batch& batch) {
    LossOutput output(tiny_loss(model, batch));
    output.weight = 0;
    return output;
  });
  Forward one(1);
  CHECK_FALSE(one.run(random_batch(2, 1), nothing)[0].defined());
  CHECK(one.losses.results()[0].output.has_value());
}

TEST_CASE("The origin of a loss that is not finite is found where steps skip it", "[train][replica_losses]") {
  Batch batch = random_batch(2, 1);
  batch["x"][1][0] = INFINITY;
  Forward plain(1), skipping(1, {.skip_nonfinite = true});
  plain.run(batch, kTinyLoss);
  CHECK(plain.losses.results()[0].nonfinite.empty());
  skipping.run(batch, kTinyLoss);
  CHECK_FALSE(skipping.losses.results()[0].nonfinite.empty());
}

TEST_CASE("A row that does not count has the first row's values, or zeros", "[train][replica_losses]") {
  const Batch batch = random_batch(3, 1);
  const Batch row = trainkit::detail::uncounted_row(batch, at::kCPU);
  CHECK(row.size() == 1);
  CHECK(row.padding_rows() == 1);
  CHECK(torch::equal(row["x"], batch["x"].slice(0, 0, 1)));
  const Batch zeros = trainkit::detail::uncounted_row(batch.slice(0, 0), at::kCPU);
  CHECK(zeros["x"].abs().sum().item<float>() == 0);
}
