// Steps of replicas that wait for each other in SyncBatchNorm, although some of them have nothing that counts.
#include "test_util.h"
#include "train/batch_norm_net.h"
#include "trainkit/optim/sgd.h"
#include "trainkit/train/train_step.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

using Loss = std::function<LossOutput(SyncNormNet&, const Batch&)>;

/// Trains on the batches with this many replicas and returns the weights and buffers.
std::vector<at::Tensor> trained(int64_t replicas, const std::vector<Batch>& batches, const Loss& loss) {
  torch::manual_seed(3);
  auto devices = DeviceReplicator::create([] { return SyncNormNet(8); }, {.cpu_replicas = replicas}).value();
  SGD sgd({.lr = 0.1});
  TrainStep step(*devices, sgd);
  for (const Batch& batch : batches) CHECK(std::isfinite(step(batch, loss).loss.item<double>()));
  std::vector<at::Tensor> state = devices->module()->parameters();
  for (const at::Tensor& buffer : devices->module()->buffers()) state.push_back(buffer);
  return state;
}

void check_close(const std::vector<at::Tensor>& ours, const std::vector<at::Tensor>& expected) {
  REQUIRE(ours.size() == expected.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    CAPTURE(i, ours[i], expected[i]);
    CHECK(torch::allclose(ours[i], expected[i], 1e-4, 1e-5));
  }
}

}  // namespace

TEST_CASE("A batch with fewer rows than replicas trains as on one replica", "[train][sync_batch_norm]") {
  const std::vector<Batch> batches = {random_batch(2, 1), random_batch(4, 2), random_batch(3, 3)};
  const Loss loss = [](SyncNormNet& model, const Batch& batch) { return loss_and_hits(model, batch); };
  check_close(trained(4, batches, loss), trained(1, batches, loss));
}

TEST_CASE("A replica of weight 0 adds nothing to the gradients, also if its loss is NaN", "[train][sync_batch_norm]") {
  // Rows of class 0 count; the first half of the batch has none.
  Batch batch = random_batch(8, 4);
  batch = batch.with_tensors({batch["x"], torch::tensor({1, 2, 3, 1, 0, 2, 0, 0})});
  const Loss loss = [](SyncNormNet& model, const Batch& rows) {
    const at::Tensor counts = rows["y"].eq(0).to(at::kFloat);
    LossOutput output((model->forward(rows["x"]).square().sum(1) * counts).sum() / counts.sum());
    output.weight = counts.sum().item<double>();
    return output;
  };
  check_close(trained(2, {batch, batch}, loss), trained(1, {batch, batch}, loss));
}

TEST_CASE("A replica whose rows skip a branch before a frozen norm takes part in its backward",
          "[train][sync_batch_norm]") {
  struct BranchNet : torch::nn::Module {
    BranchNet() {
      register_module("branch", branch);
      register_module("norm", norm);
      norm->weight.requires_grad_(false);
      norm->bias.requires_grad_(false);
    }
    torch::nn::Linear branch{8, 8};
    SyncBatchNorm norm{8};
  };
  const auto branch_weights = [](int64_t replicas) {
    torch::manual_seed(3);
    auto devices = DeviceReplicator::create([] { return std::make_shared<BranchNet>(); }, {.cpu_replicas = replicas});
    SGD sgd({.lr = 0.1});
    TrainStep step(**devices, sgd);
    Batch batch = random_batch(8, 5);
    batch = batch.with_tensors({batch["x"], at::arange(8).ge(4).to(at::kLong)});  // the second replica's use the branch
    const auto loss = [](torch::nn::Module& module, const Batch& rows) {
      auto& net = *module.as<BranchNet>();
      const at::Tensor uses = rows["y"].nonzero().squeeze(1);
      at::Tensor x = rows["x"];
      if (uses.numel() > 0) x = x.index_add(0, uses, net.branch->forward(x.index_select(0, uses)));
      return LossOutput((net.norm->forward(x) * rows["x"]).square().mean());
    };
    for (int i = 0; i < 3; ++i) step(batch, loss);
    return (*devices)->module()->parameters();
  };
  check_close(branch_weights(2), branch_weights(1));
}

TEST_CASE("Replicas that reduce different tensors get an error", "[train][sync_batch_norm]") {
  auto devices = DeviceReplicator::create([] { return SyncNormNet(8); }, {.cpu_replicas = 2}).value();
  const auto reduce = [&](int64_t replica) {
    at::Tensor values = at::zeros({replica + 1});
    devices->group().all_reduce(replica, values);
    return at::Tensor();
  };
  CHECK_THROWS_WITH(devices->run(reduce, false), Catch::Contains("replicas reduce different tensors"));
}
