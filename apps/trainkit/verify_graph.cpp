// Checks that a training step replayed from a CUDA graph is bitwise identical to the eager step.
#include <fmt/format.h>
#include <torch/nn/module.h>
#include <torch/utils.h>

#include <limits>
#include <optional>

#include "trainkit/data/batch.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/optim/adam.h"
#include "trainkit/optim/lr_scheduler.h"
#include "trainkit/optim/optimizer.h"
#include "trainkit/train/train_step.h"
#include "trainkit/verify.h"
#include "trainkit/verify_net.h"

namespace trainkit::tool {
namespace {

constexpr int64_t kGraphRows = 32, kGraphSteps = 20, kBrokenStep = 9;
constexpr uint64_t kGraphSeed = 11;

/// Results of a training: the losses of its steps, and parameters, buffers and optimizer state after the last one.
struct Trained {
  std::vector<at::Tensor> losses, weights;
  int64_t graph_steps = 0, captures = 0;
  double skipped = 0;
  std::string graph_reason = {};
};

std::vector<at::Tensor> state_of(const torch::nn::Module& model, const Optimizer& optimizer) {
  std::vector<at::Tensor> all;
  const auto keep = [&](const at::Tensor& tensor) { all.push_back(tensor.detach().cpu()); };
  for (const at::Tensor& parameter : model.parameters()) keep(parameter);
  for (const at::Tensor& buffer : model.buffers()) keep(buffer);
  for (const auto& [name, value] : optimizer.state_dict()) {
    if (const auto* tensor = std::get_if<at::Tensor>(&value)) keep(*tensor);
  }
  return all;
}

/// Trains on the same batches, with the same random numbers; the gradients of one step are not finite.
Trained train(at::Device device, Precision precision, CudaGraph graph, const std::vector<Batch>& batches) {
  torch::manual_seed(kGraphSeed);
  const auto devices = DeviceReplicator::create([] { return VerifyNet(0.2); }, {.device = device}).value();
  AdamW optimizer({.lr = 1e-2, .capturable = true});
  for (auto& group : default_param_groups(*devices->module())) optimizer.add_param_group(std::move(group));
  LRScheduler scheduler(
      optimizer,
      create_schedule({.name = "cosine", .total_steps = 2 * kGraphSteps, .warmup_steps = kGraphSteps / 4}).value());
  TrainStep step(*devices, optimizer,
                 {.precision = precision,
                  .grad_clip = 1,
                  .skip_nonfinite = true,
                  .scaler = {.growth_interval = 5},
                  .cuda_graph = graph},
                 &scheduler);
  const LossFunction loss = verify_loss();
  Trained trained;
  for (const Batch& batch : batches) {
    const StepMetrics metrics = step(batch, loss);
    trained.losses.push_back(metrics.loss.cpu());
    trained.skipped += metrics.skipped_in_a_row.item<double>();
  }
  trained.weights = state_of(*devices->module(), optimizer);
  trained.graph_steps = step.graph_steps();
  trained.captures = step.graph_captures();
  trained.graph_reason = step.graph_reason();
  return trained;
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return at::allclose(a.to(at::kDouble), b.to(at::kDouble), 0, 0, /*equal_nan=*/true);
}

/// Returns the first step whose loss differs, counted from 1; kGraphSteps + 1 if only the final state differs; else 0.
int64_t first_difference(const Trained& a, const Trained& b) {
  for (size_t i = 0; i < a.losses.size(); ++i) {
    if (!same_bits(a.losses[i], b.losses[i])) return static_cast<int64_t>(i) + 1;
  }
  for (size_t i = 0; i < a.weights.size(); ++i) {
    if (!same_bits(a.weights[i], b.weights[i])) return kGraphSteps + 1;
  }
  return 0;
}

std::string place_of_difference(int64_t step) {
  return step > kGraphSteps ? "in the weights after the last step" : fmt::format("from the loss of step {} on", step);
}

std::vector<Batch> make_batches(at::Device device) {
  torch::manual_seed(kGraphSeed + 1);
  std::vector<Batch> batches;
  for (int64_t i = 0; i < kGraphSteps; ++i) {
    const Batch batch = verify_batch(kGraphRows);
    if (i == kBrokenStep) batch["factor"][0] = std::numeric_limits<float>::infinity();
    batches.push_back(batch.to(device));
  }
  return batches;
}

Checked verify_graph(at::Device device, Precision precision) {
  if (device.is_cpu()) return {Checked::State::kSkipped, "a CUDA graph needs a GPU"};
  const std::vector<Batch> batches = make_batches(device);
  const Trained eager = train(device, precision, CudaGraph::kOff, batches);
  const Trained graph = train(device, precision, CudaGraph::kOn, batches);
  const int64_t differs = first_difference(eager, graph);
  const nlohmann::ordered_json value = {{"graph_steps", graph.graph_steps},
                                        {"captures", graph.captures},
                                        {"skipped", graph.skipped},
                                        {"first_difference", differs}};
  const auto result = [&](bool passed, std::string text, const std::string& hint) {
    return passed_if(passed, std::move(text), value, hint);
  };
  const std::string send = "send this report to the developers; ";
  if (eager.skipped < 1 || graph.skipped < 1) {
    return result(false, "the step with non-finite gradients was not skipped", send + "do not train on this GPU");
  }
  if (graph.graph_steps == 0) {
    return result(false, "no step was captured: " + graph.graph_reason, send + "training works, but runs eagerly");
  }
  if (differs == 0) {
    return result(true,
                  fmt::format("{} steps are bitwise identical to eager ones, {} of them replayed, {:g} skipped",
                              kGraphSteps, graph.graph_steps, graph.skipped),
                  "");
  }
  const Trained again = train(device, precision, CudaGraph::kOff, batches);
  if (const int64_t other = first_difference(eager, again); other > 0) {
    return result(
        false, "two eager runs differ " + place_of_difference(other),
        "this GPU is not deterministic: check its memory (`nvidia-smi -q -d ECC`); " + send + "do not train on it");
  }
  return result(false, "graph and eager steps differ " + place_of_difference(differs),
                send + "train with --cuda_graph off");
}

}  // namespace

Checked verify_graph_fp32(at::Device device) { return verify_graph(device, Precision::kFp32); }
Checked verify_graph_fp16(at::Device device) { return verify_graph(device, Precision::kFp16); }

}  // namespace trainkit::tool
