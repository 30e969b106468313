// A captured step equals the eager one. On the CPU, where tape.h replaces CUDA graphs.
#include "optim/optimizer_parts.h"
#include "test_util.h"
#include "train/batch_norm_net.h"
#include "train/budget_allocator.h"
#include "train/graph/step_graphs.h"
#include "train/loop_util.h"
#include "train/tape.h"
#include "trainkit/app/run_options.h"
#include "trainkit/data/sampler.h"
#include "trainkit/optim/adam.h"
#include "trainkit/optim/sgd.h"
#include "trainkit/train/train_step.h"
#include "trainkit/train/trainer.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

/// Records steps on tapes; see TapeBackend for `live`.
std::function<std::unique_ptr<trainkit::detail::GraphBackend>()> on_tape(
    std::function<std::vector<at::Tensor>()> live) {
  return [live] { return std::make_unique<TapeBackend>(live); };
}

/// A model with its optimizer and step, captured or eager.
template <class O>
struct GraphTraining {
  GraphTraining(bool captured, O made, const TrainStepOptions& options, double dropout = 0)
      : devices((torch::manual_seed(1), DeviceReplicator::create([&] { return TinyNet(dropout); }).value())),
        optimizer(std::move(made)) {
    for (auto& group : default_param_groups(*devices->module())) optimizer.add_param_group(std::move(group));
    scheduler.emplace(optimizer, create_schedule({.name = "cosine", .total_steps = 40, .warmup_steps = 5}).value());
    TrainStepOptions all = options;
    if (captured) all.graph_backend = on_tape([this] { return live(); });
    all.cuda_graph = captured ? CudaGraph::kAuto : CudaGraph::kOff;
    step.emplace(*devices, optimizer, all, &*scheduler);
  }

  std::vector<at::Tensor> live() const {
    std::vector<at::Tensor> all = devices->module()->parameters();
    for (const auto& [name, value] : optimizer.state_dict()) {
      if (const auto* tensor = std::get_if<at::Tensor>(&value)) all.push_back(*tensor);
    }
    all.push_back(optimizer.step_count());
    for (const at::Tensor& lr : trainkit::detail::OptimizerParts::of(optimizer).rates.on_device()) all.push_back(lr);
    if (!step) return all;
    for (const auto& [name, average] : step->averages()) all.push_back(average);
    return all;
  }

  std::unique_ptr<DeviceReplicator> devices;
  O optimizer;
  std::optional<LRScheduler> scheduler;
  std::optional<TrainStep> step;
  LossFunction loss = make_loss_function(loss_and_hits<TinyNet>);
};

/// Trains both ways on the same batches of `rows(i)` rows and expects the same bits. Returns the number of captured
/// steps.
template <class O, class P>
int64_t expect_same(P optimizer, const TrainStepOptions& options, const std::function<int64_t(int)>& rows,
                    int64_t* captures = nullptr) {
  optimizer.capturable = true;
  GraphTraining<O> eager(false, O(optimizer), options), captured(true, O(optimizer), options);
  for (int i = 0; i < 40; ++i) {
    StepMetrics metrics[2];
    for (GraphTraining<O>* training : {&eager, &captured}) {
      for (int64_t part = 0; part < options.grad_accum_steps; ++part) {
        training->step->accumulate(random_batch(rows(i), static_cast<uint64_t>(i * 10 + part)), training->loss);
      }
      if (i == 3 || i == 9) training->step->request_stop(15);  // captured, replayed
      metrics[training == &captured] = training->step->finish();
      CHECK(training->step->agreed_stop() == (i == 3 || i == 9 ? 15 : 0));
    }
    INFO(i << ": " << captured.step->graph_reason());
    CHECK(metrics[0].loss.item<float>() == metrics[1].loss.item<float>());
    CHECK(metrics[0].metrics[0].first == metrics[1].metrics[0].first);
    CHECK(metrics[0].metrics[0].second.item<double>() == metrics[1].metrics[0].second.item<double>());
    CHECK(metrics[0].grad_norm.defined() == metrics[1].grad_norm.defined());
    if (metrics[0].grad_norm.defined()) CHECK(torch::equal(metrics[0].grad_norm, metrics[1].grad_norm));
    CHECK(metrics[0].weight == metrics[1].weight);
    CHECK(metrics[0].world_weight == metrics[1].world_weight);
  }
  const auto a = eager.live(), b = captured.live();
  for (size_t i = 0; i < a.size(); ++i) CHECK(torch::equal(a[i], b[i]));
  if (captures) *captures = captured.step->graph_captures();
  return captured.step->graph_steps();
}

}  // namespace

TEST_CASE("A captured step has the bits of the eager one: Adam, clipping, a schedule", "[train][step_graphs]") {
  CHECK(expect_same<AdamW>(AdamWOptions{.lr = 1e-2}, {.grad_clip = 0.5}, [](int) { return 12; }) == 37);
  CHECK(expect_same<AdamW>(AdamWOptions{.lr = 1e-2}, {.ema_decay = 0.9}, [](int) { return 12; }) == 37);
}

TEST_CASE("A captured step has the bits of the eager one: SGD, accumulation, gradients kept", "[train][step_graphs]") {
  CHECK(expect_same<SGD>(SGDOptions{.lr = 0.1, .momentum = 0.9},
                         {.grad_accum_steps = 2, .zero_grad_set_to_none = false}, [](int) { return 12; }) == 37);
}

TEST_CASE("Each shape has its own graph, and steps of all shapes may alternate", "[train][step_graphs]") {
  int64_t captures = 0;
  const int64_t steps = expect_same<AdamW>(
      AdamWOptions{.lr = 1e-2}, {.grad_clip = 0.5}, [](int i) { return i % 5 == 4 ? 7 : 12; }, &captures);
  CHECK(captures == 2);
  CHECK(steps == 40 - 6);
}

TEST_CASE("A loss function that changes its own state is not captured", "[train][step_graphs]") {
  GraphTraining<AdamW> training(true, AdamW({.lr = 1e-2}), {});
  double factor = 1;
  const LossFunction loss =
      make_loss_function([&](TinyNet& model, const Batch& batch) { return tiny_loss(model, batch) * (factor *= 0.9); });
  for (int i = 0; i < 20; ++i) (*training.step)(random_batch(4, static_cast<uint64_t>(i)), loss);
  CHECK(training.step->graph_captures() == 0);
  CHECK(training.step->graph_reason() == "steps differ: aten::mul has different shapes or numbers");
  CHECK_FALSE(training.step->uses_graphs());
}

TEST_CASE("A step that draws random numbers on the CPU, or reads a scalar, is not captured and logs the reason",
          "[train][step_graphs]") {
  GraphTraining<AdamW> draws(true, AdamW({.lr = 1e-2}), {}, /*dropout=*/0.2);
  GraphTraining<AdamW> reads(true, AdamW({.lr = 1e-2}), {});
  const LossFunction loss = make_loss_function([](TinyNet& model, const Batch& batch) {
    const at::Tensor value = tiny_loss(model, batch);
    return value.item<float>() > 0 ? value : -value;
  });
  for (int i = 0; i < 5; ++i) {
    (*draws.step)(random_batch(4, static_cast<uint64_t>(i)), draws.loss);
    (*reads.step)(random_batch(4, static_cast<uint64_t>(i)), loss);
  }
  CHECK(draws.step->graph_reason() == "a step cannot be captured: random numbers are drawn on the CPU");
  CHECK(reads.step->graph_reason() == "a step cannot be captured: aten::item reads from the device");
}

TEST_CASE("By default a loss with a changing host value trains as the eager step does", "[train][step_graphs]") {
  CHECK(TrainerOptions().cuda_graph == CudaGraph::kOff);
  CHECK(RunOptions().cuda_graph == CudaGraph::kOff);
  std::vector<std::vector<at::Tensor>> weights;
  for (const bool is_default : {false, true}) {
    torch::manual_seed(1);
    const auto devices = DeviceReplicator::create([] { return TinyNet(0); }).value();
    AdamW optimizer({.lr = 1e-2, .capturable = true});
    TrainStepOptions options{.graph_backend = on_tape([] { return std::vector<at::Tensor>(); })};
    if (!is_default) options.cuda_graph = CudaGraph::kOff;
    TrainStep step(*devices, optimizer, options);
    double factor = 1;
    const LossFunction loss =
        make_loss_function([&](TinyNet& model, const Batch& batch) { return tiny_loss(model, batch) * factor; });
    for (int i = 0; i < 20; ++i) {
      if (i == 10) factor = 0.5;
      step(random_batch(4, static_cast<uint64_t>(i)), loss);
    }
    CHECK(step.graph_steps() == 0);
    weights.push_back(devices->module()->parameters());
  }
  for (size_t i = 0; i < weights[0].size(); ++i) CHECK(torch::equal(weights[0][i], weights[1][i]));
}

TEST_CASE("A loss function created later at the same address is a different one", "[train][step_graphs]") {
  const auto scaled = [](double factor) {
    return make_loss_function(
        [factor](TinyNet& model, const Batch& batch) { return tiny_loss(model, batch) * factor; });
  };
  GraphTraining<AdamW> eager(false, AdamW({.lr = 1e-2, .capturable = true}), {}),
      captured(true, AdamW({.lr = 1e-2}), {});
  std::optional<LossFunction> losses[2];
  const void* address = nullptr;
  for (int i = 0; i < 30; ++i) {
    if (i % 10 == 0) {
      for (auto& loss : losses) loss.emplace(scaled(1.0 / (1 + i)));
    }
    if (i == 25) {
      for (auto& loss : losses) *loss = scaled(3);
    }
    if (address) CHECK(address == &*losses[1]);
    address = &*losses[1];
    const StepMetrics a = (*eager.step)(random_batch(4, static_cast<uint64_t>(i)), *losses[0]);
    const StepMetrics b = (*captured.step)(random_batch(4, static_cast<uint64_t>(i)), *losses[1]);
    INFO(i << ": " << captured.step->graph_reason());
    CHECK(torch::equal(a.loss, b.loss));
  }
  CHECK(captured.step->graph_captures() == 4);
  CHECK(captured.step->graph_steps() == 7 + 7 + 2 + 2);
  const auto a = eager.live(), b = captured.live();
  for (size_t i = 0; i < a.size(); ++i) CHECK(torch::equal(a[i], b[i]));
}

TEST_CASE("A loss function has its own identity, and a copy has a new one", "[train][step_graphs]") {
  LossFunction none, loss = [](torch::nn::Module&, const Batch&) { return LossOutput(torch::ones({})); };
  CHECK_FALSE(none);
  CHECK(none.id() == 0);
  REQUIRE(loss);
  const uint64_t id = loss.id();
  LossFunction copy = loss;
  CHECK(copy.id() != id);
  const LossFunction moved = std::move(loss);
  CHECK(moved.id() == id);
  loss = moved;  // NOLINT(bugprone-use-after-move)
  CHECK(loss.id() != id);
  loss = nullptr;
  CHECK_FALSE(loss);
}

TEST_CASE("A captured step without memory for its metrics retries before it begins", "[train][step_graphs]") {
  GraphTraining<AdamW> eager(false, AdamW({.lr = 1e-2, .capturable = true}), {}),
      captured(true, AdamW({.lr = 1e-2}), {});
  BudgetAllocator& memory = BudgetAllocator::instance();
  for (uint64_t i = 0; i < 10; ++i) {
    const Batch batch = random_batch(4, i);
    const StepMetrics expected = (*eager.step)(batch, eager.loss);
    captured.step->accumulate(batch, captured.loss);
    if (i >= 7) memory.fail_after(0);
    const StepMetrics metrics = captured.step->finish();
    CHECK(memory.disarm() == (i >= 7));
    CHECK(torch::equal(metrics.loss, expected.loss));
  }
  CHECK(captured.step->graph_steps() == 7);
  const auto a = eager.live(), b = captured.live();
  for (size_t i = 0; i < a.size(); ++i) CHECK(torch::equal(a[i], b[i]));
}

TEST_CASE("A temporary loss function is not captured, and a persistent one is", "[train][step_graphs]") {
  GraphTraining<AdamW> training(true, AdamW({.lr = 1e-2}), {});
  for (int i = 0; i < 6; ++i) {
    (*training.step)(random_batch(4, 1), [&](torch::nn::Module& m, const Batch& b) { return training.loss(m, b); });
  }
  CHECK_THAT(training.step->graph_reason(), Catch::Contains("a temporary"));
  for (int i = 0; i < 4; ++i) (*training.step)(random_batch(4, 1), training.loss);
  CHECK(training.step->graph_reason().empty());
  CHECK(training.step->graph_steps() == 1);
}

TEST_CASE("A step whose capture fails, early or late, runs eagerly with the same bits", "[train][step_graphs]") {
  const bool late = GENERATE(false, true);
  GraphTraining<AdamW> plain(false, AdamW({.lr = 1e-2, .capturable = true}), {});
  GraphTraining<AdamW> fails(true, AdamW({.lr = 1e-2}), {});
  int calls = 0;
  const LossFunction loss = [&](torch::nn::Module& module, const Batch& batch) -> LossOutput {
    LossOutput output = fails.loss(module, batch);
    const bool captured = ++calls == 4;
    TORCH_CHECK(late || !captured, "operation not permitted when stream is capturing\nand more");
    if (captured) output.metrics[0].second = output.metrics[0].second.clone();
    return output;
  };
  for (int i = 0; i < 8; ++i) {
    if (i == 3) fails.step->request_stop(15);
    const StepMetrics a = (*plain.step)(random_batch(4, static_cast<uint64_t>(i)), plain.loss);
    const StepMetrics b = (*fails.step)(random_batch(4, static_cast<uint64_t>(i)), loss);
    CHECK(torch::equal(a.loss, b.loss));
    CHECK(fails.step->agreed_stop() == (i == 3 ? 15 : 0));
  }
  CHECK(fails.step->graph_captures() == 0);
  CHECK_THAT(fails.step->graph_reason(),
             Catch::StartsWith(late ? "a step cannot be captured: the captured step differs from the one before: "
                                    : "a step cannot be captured: operation not permitted when stream is capturing"));
  CHECK(fails.step->graph_reason().find('\n') == std::string::npos);
  const auto a = plain.live(), b = fails.live();
  for (size_t i = 0; i < a.size(); ++i) CHECK(torch::equal(a[i], b[i]));
}

TEST_CASE("Loading a state captures the step again and resumes from that state", "[train][step_graphs]") {
  GraphTraining<AdamW> training(true, AdamW({.lr = 1e-2}), {});
  for (int i = 0; i < 6; ++i) (*training.step)(random_batch(4, 1), training.loss);
  CHECK(training.step->graph_captures() == 1);
  CHECK(training.step->graph_steps() == 3);
  CHECK(training.optimizer.step_count().item<float>() == 6);
  CHECK(trainkit::detail::OptimizerParts::of(training.optimizer).counts.upper_bound() >= 6);
  REQUIRE(training.optimizer.load_state_dict(training.optimizer.state_dict()).ok());
  (*training.step)(random_batch(4, 1), training.loss);
  CHECK_THAT(training.step->graph_reason(), Catch::Contains("captured again"));
  for (int i = 0; i < 4; ++i) (*training.step)(random_batch(4, 1), training.loss);
  CHECK(training.step->graph_captures() == 2);
  CHECK(training.optimizer.step_count().item<float>() == 11);
}

TEST_CASE("Graphs that are dropped to free memory are not captured again", "[train][step_graphs]") {
  GraphTraining<AdamW> training(true, AdamW({.lr = 1e-2}), {});
  CHECK_FALSE(training.step->drop_graphs("nothing to drop"));
  for (int i = 0; i < 6; ++i) (*training.step)(random_batch(4, 1), training.loss);
  CHECK(training.step->drop_graphs("out of memory"));
  (*training.step)(random_batch(4, 1), training.loss);
  CHECK(training.step->graph_reason() == "out of memory");
  CHECK(training.step->graph_steps() == 3);
}

TEST_CASE("Steps run eagerly on the CPU, and `on` is an error", "[train][step_graphs]") {
  const auto devices = DeviceReplicator::create([] { return TinyNet(0); }).value();
  AdamW optimizer, other;
  TrainStep step(*devices, optimizer, {.cuda_graph = CudaGraph::kAuto}), off(*devices, other);
  CHECK(step.graph_reason() == "the device is cpu");
  CHECK(off.graph_reason() == "cuda_graph is off");
  CHECK_FALSE(trainkit::detail::OptimizerParts::of(optimizer).counts.are_on_device());
  AdamW third;
  CHECK_THROWS_AS(TrainStep(*devices, third, {.cuda_graph = CudaGraph::kOn}), c10::ValueError);
}

TEST_CASE("The step calls the given loss function, not a copy", "[train][step_graphs]") {
  struct Counting {
    std::shared_ptr<int> copies = std::make_shared<int>(0);
    Counting() = default;
    Counting(const Counting& other) : copies(other.copies) { ++*copies; }
    Counting(Counting&&) = default;
    LossOutput operator()(torch::nn::Module& module, const Batch& batch) {
      return module.as<TinyNetImpl>()->forward(batch["x"]).sum();
    }
  };
  const auto devices = DeviceReplicator::create([] { return TinyNet(0); }).value();
  AdamW optimizer;
  TrainStep step(*devices, optimizer);
  const Counting counting;
  const LossFunction loss = counting;
  const int before = *counting.copies;
  for (int i = 0; i < 3; ++i) step(random_batch(4, 1), loss);
  CHECK(*counting.copies == before);
}
