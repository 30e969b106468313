// Exported models on a GPU.
#include "nn/exported/made_model.h"
#include "test_util.h"
#include "train/gpu_training.h"
#include "trainkit/nn/exported_model.h"
#include "trainkit/train/weights.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

/// Batch normalisation and a layer, with a literal of the device, on tiny rows.
ExportedModel exported_net() {
  const TempDir dir;
  torch::manual_seed(3);
  MadeModel model({{"hidden", torch::randn({16, 8}) * 0.3},
                   {"scale", torch::ones({16})},
                   {"shift", torch::zeros({16})},
                   {"running_mean", torch::zeros({16})},
                   {"running_var", torch::ones({16})},
                   {"out", torch::randn({4, 16}) * 0.3}},
                  {{"x", "float32", {-1, 8}}});
  TORCH_CHECK(model
                  .write(dir / "model.tkm",
                         [](MadeModel& m) {
                           Json y = m.call("aten::linear", {{"input", m["x"]}, {"weight", m["hidden"]}});
                           y = batch_norm(m, y);
                           y = m.call("aten::relu", {{"self", y}});
                           const Json ones = m.call("aten::ones", {{"size", Json::array({16})},
                                                                   {"dtype", {{"dtype", "float32"}}},
                                                                   {"device", {{"device", "model"}}}});
                           y = m.call("aten::mul.Tensor", {{"self", y}, {"other", ones}});
                           return m.call("aten::linear", {{"input", y}, {"weight", m["out"]}});
                         })
                  .ok());
  return ExportedModel::load(dir / "model.tkm").value();
}

std::vector<at::Tensor> weights_after_steps(at::Device device, CudaGraph graph) {
  const auto devices = DeviceReplicator::create([] { return exported_net(); }, {.device = device}).value();
  AdamW optimizer(AdamWOptions{.lr = 1e-2, .capturable = device.is_cuda()});
  for (auto& group : default_param_groups(*devices->module())) optimizer.add_param_group(std::move(group));
  TrainStep step(*devices, optimizer, {.cuda_graph = graph});
  const LossFunction loss = make_loss_function([](ExportedModel& net, const Batch& batch) {
    return at::cross_entropy_loss(net->forward(batch["x"]), batch["y"]);
  });
  for (uint64_t k = 0; k < 12; ++k) {
    const Batch batch = random_batch(16, k);
    step(device.is_cuda() ? batch.to(device) : batch, loss);
  }
  if (graph == CudaGraph::kOn) {
    CHECK(step.graph_captures() == 1);
    CHECK(step.graph_steps() > 0);
  }
  std::vector<at::Tensor> weights;
  for (const auto& [name, tensor] : named_tensors(*devices->module())) weights.push_back(tensor.detach().cpu().clone());
  return weights;
}

}  // namespace

TEST_CASE("The steps of an exported model are captured as a CUDA graph with the bits of eager steps",
          "[train][exported_cuda]") {
  NEEDS_GPU;
  const auto eager = weights_after_steps(kGpu, CudaGraph::kOff), graph = weights_after_steps(kGpu, CudaGraph::kOn),
             on_cpu = weights_after_steps(at::kCPU, CudaGraph::kOff);
  REQUIRE(eager.size() == 6);
  for (size_t k = 0; k < eager.size(); ++k) {
    CHECK(graph[k].equal(eager[k]));
    CHECK(torch::allclose(eager[k], on_cpu[k], 1e-3, 1e-4));
  }
}
