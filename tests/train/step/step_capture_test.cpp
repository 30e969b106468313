// How a step runs: eagerly, traced, captured or replayed; and what a failed capture leaves.
#include "train/step/step_capture.h"

#include <torch/torch.h>

#include "optim/optimizer_parts.h"
#include "test_util.h"
#include "train/agreement/agreement.h"
#include "train/agreement/steps_in_flight.h"
#include "train/batch_norm_net.h"
#include "train/loop_util.h"
#include "train/losses/loss_weights.h"
#include "train/losses/metric_sums.h"
#include "train/losses/step_batches.h"
#include "train/retry/memory_recovery.h"
#include "train/update/weight_update.h"
#include "trainkit/optim/sgd.h"

using namespace trainkit;
using namespace trainkit::test;
using namespace trainkit::detail;

namespace {

/// Notes what a capture asks of it.
struct Backend final : GraphBackend {
  struct Work final : Graph {
    explicit Work(std::string* log) : log(log) {}
    void replay() override { *log += " replay"; }
    std::string* log;
  };
  explicit Backend(std::string* log) : log(log) {}
  void run_beside(const std::function<void()>& work) override {
    *log += " stream";
    work();
  }
  std::unique_ptr<Graph> capture(const std::function<void()>& work) override {
    *log += " capture";
    work();
    return std::make_unique<Work>(log);
  }
  std::string* log;
};

/// A step that computes a loss and nothing else.
struct Step final : CapturableStep {
  explicit Step(CudaGraph graph = CudaGraph::kAuto)
      : devices(DeviceReplicator::create([] { return TinyNet(0); }).value()),
        update(strategy_of(*devices), optimizer, {}, nullptr, memory),
        capture(strategy_of(*devices),
                {.cuda_graph = graph, .graph_backend = [this] { return std::make_unique<Backend>(&log); }},
                {memory, batches, weights, sums, update}) {}

  void begin() override { log += " begin"; }
  void compute() override {
    log += " compute";
    if (capture.is_capturing() && fails) TORCH_CHECK(false, "cannot be captured");
    sums.metrics().loss = at::ones({});
    weights.set_sum(3);
    static_cast<void>(agreement->settle(1, 3, 3));
  }
  void undo() override { log += " undo"; }

  /// Runs a step; returns what was called.
  std::string run(int64_t rows = 4) {
    log.clear();
    batches.keep(random_batch(rows, 1), 0);
    batches.add(&loss, nullptr);
    capture.run(*this, *agreement, 1);
    batches.clear();
    static_cast<void>(sums.take(weights));
    weights.clear();
    return log;
  }

  std::string log;
  bool fails = false;
  LossFunction loss = make_loss_function(tiny_loss);
  std::unique_ptr<DeviceReplicator> devices;
  SGD optimizer{{.lr = 0.1}};
  MemoryRecovery memory{at::kCPU, nullptr};
  LossWeights weights{*devices, 1, memory};
  MetricSums sums{*devices, memory};
  StepBatches batches{1};
  StepsInFlight in_flight{devices_of(*devices)};
  std::unique_ptr<Agreement> agreement = make_agreement(strategy_of(*devices), in_flight, memory, nullptr, false);
  WeightUpdate update;
  StepCapture capture;
};

constexpr const char* kOnStream = " stream compute";
constexpr const char* kCaptured = " begin capture compute replay";

}  // namespace

TEST_CASE("A step warms up, is traced twice, captured and replayed", "[train][step_capture]") {
  Step step;
  CHECK(step.capture.is_active());
  CHECK(OptimizerParts::of(step.optimizer).counts.are_on_device());
  CHECK(step.capture.state_of_model()->size() == step.devices->module()->parameters().size());
  for (int i = 0; i < 3; ++i) CHECK(step.run() == kOnStream);
  CHECK(step.run() == kCaptured);
  CHECK(step.run() == " replay");
  CHECK(step.capture.reason().empty());
  CHECK(step.agreement->verdict().weight == 3);
  CHECK(step.run(/*rows=*/2) == kOnStream);  // another kind
}

TEST_CASE("A capture that fails is undone, and the step and all later ones run eagerly", "[train][step_capture]") {
  Step step;
  step.agreement->request_save();
  for (int i = 0; i < 3; ++i) step.run();
  step.agreement->request_save();
  step.fails = true;
  CHECK(step.run() == " begin capture compute undo compute");
  CHECK(step.agreement->verdict().save);  // the vote of the failed capture was restored
  CHECK_FALSE(step.capture.is_active());
  CHECK_FALSE(step.capture.is_capturing());
  CHECK(step.capture.reason() == "a step cannot be captured: cannot be captured");
  CHECK(step.capture.state_of_model() == nullptr);
}

TEST_CASE("Weights at another address drop a graph", "[train][step_capture]") {
  Step step;
  for (int i = 0; i < 5; ++i) step.run();
  at::Tensor& weight = step.devices->module()->as<TinyNetImpl>()->out->weight;
  weight.set_data(weight.detach().clone());
  CHECK(step.run() == " compute");
  CHECK_FALSE(step.capture.graphs()->holds_any());
}

TEST_CASE("Steps are not captured unless they are asked to be", "[train][step_capture]") {
  Step off(CudaGraph::kOff);
  CHECK_FALSE(off.capture.is_active());
  CHECK(off.capture.graphs() == nullptr);
  CHECK(off.capture.reason() == "cuda_graph is off");
  CHECK_FALSE(OptimizerParts::of(off.optimizer).counts.are_on_device());
}
