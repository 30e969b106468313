// TrainStep when memory runs out during a step.
#include "optim/optimizer_parts.h"
#include "ranks.h"
#include "test_util.h"
#include "train/batch_norm_net.h"
#include "train/budget_allocator.h"
#include "train/loop_util.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/optim/adam.h"
#include "trainkit/train/train_step.h"
#include "trainkit/train/trainer.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

LossOutput net_loss(BatchNormNet& model, const Batch& batch) {
  const at::Tensor scores = model->forward(batch["x"]);
  LossOutput output(at::cross_entropy_loss(scores, batch["y"]));
  const at::NoGradGuard no_grad;
  output.metrics = {{"accuracy", scores.argmax(1).eq(batch["y"]).to(at::kFloat).mean()}};
  return output;
}

/// Takes 80 KB per row, and the same for its gradient.
at::Tensor wide_loss(BatchNormNet& model, const Batch& batch) {
  const at::Tensor large = model->forward(batch["x"]).repeat({1, 5000});
  return at::cross_entropy_loss(large, batch["y"]);
}

constexpr int64_t kRows = 8;

/// A model, its optimizer and its step, always with the same initial state.
struct Training {
  explicit Training(const TrainStepOptions& options, int64_t replicas = 1)
      : devices((torch::manual_seed(1),
                 DeviceReplicator::create([] { return BatchNormNet(); }, {.cpu_replicas = replicas}).value())),
        step(*devices, optimizer, options) {
    torch::manual_seed(2);
  }

  StepMetrics run(uint64_t seed) {
    for (int64_t i = 0; i < step.options().grad_accum_steps; ++i) {
      // Moved into the step, like a loader's batch.
      step.accumulate(random_batch(kRows, 10 * seed + static_cast<uint64_t>(i)), make_loss_function(net_loss));
    }
    return step.finish();
  }

  /// All state that the next step depends on.
  std::vector<at::Tensor> state() const {
    std::vector<at::Tensor> all;
    for (const auto& tensor : devices->module()->parameters()) all.push_back(tensor.detach().clone());
    for (const auto& tensor : devices->module()->buffers()) all.push_back(tensor.clone());
    for (const auto& [name, value] : optimizer.state_dict()) {
      if (const auto* tensor = std::get_if<at::Tensor>(&value)) all.push_back(tensor->clone());
    }
    all.push_back(at::globalContext().defaultGenerator(at::kCPU).get_state().clone());
    return all;
  }

  AdamW optimizer{AdamWOptions{.lr = 1e-2}};
  std::unique_ptr<DeviceReplicator> devices;
  TrainStep step;
};

bool same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!torch::equal(a[i], b[i])) return false;
  }
  return true;
}

/// Result of two warm steps and a third in `split` parts: the state, the loss, and the allocated bytes after one more
/// step.
struct Outcome {
  std::vector<at::Tensor> state;
  double loss = 0;
  int64_t live = 0;
  int64_t split = 1;
};

/// `fault` < 0 disables the fault. Otherwise the third step fails at allocation number `fault`, if it has that many.
Outcome run_with(const TrainStepOptions& options, int64_t replicas, int64_t split, int64_t fault, bool& failed) {
  BudgetAllocator& memory = BudgetAllocator::instance();
  const int64_t before = memory.live();
  Training training(options, replicas);
  training.run(1);
  training.run(2);
  training.step.set_split(split);
  Outcome outcome;
  {
    std::vector<Batch> batches;
    for (int64_t i = 0; i < options.grad_accum_steps; ++i)
      batches.push_back(random_batch(kRows, 30 + static_cast<uint64_t>(i)));
    if (fault >= 0) memory.fail_after(fault);
    for (Batch& batch : batches) {
      training.step.accumulate(batch, make_loss_function(net_loss));
      if (options.grad_accum_steps > 1 && &batch != &batches.back()) {
        for (const at::Tensor& tensor : batch.tensors()) tensor.zero_();  // the loader reads the next rows into it
      }
    }
    const StepMetrics metrics = training.step.finish();
    failed = memory.disarm();
    outcome.loss = metrics.loss.item<double>();
    CHECK(metrics.metrics.size() == 1);
  }
  outcome.split = training.step.split();
  outcome.state = training.state();
  training.run(4);
  const auto held = training.state();
  outcome.live = memory.live() - before;
  return outcome;
}

void check_every_fault(const TrainStepOptions& options, int64_t replicas) {
  bool failed = false;
  std::map<int64_t, Outcome> expected;
  for (const int64_t split : {1, 2, 4}) expected[split] = run_with(options, replicas, split, -1, failed);
  CHECK(!same_bits(expected[1].state, expected[2].state));  // BatchNorm and dropout see different parts
  std::map<int64_t, int> met;
  int64_t fault = 0;
  for (;; ++fault) {
    REQUIRE(fault < 5000);
    const Outcome outcome = run_with(options, replicas, 1, fault, failed);
    if (!failed) break;
    INFO("fault at allocation " << fault << ", split " << outcome.split);
    ++met[outcome.split];
    REQUIRE(expected.count(outcome.split) == 1);
    CHECK(same_bits(outcome.state, expected[outcome.split].state));
    CHECK(outcome.loss == expected[outcome.split].loss);
    CHECK(outcome.live == expected[outcome.split].live);
  }
  CHECK(fault > 50);
  CHECK(met[2] > 30);  // forward and backward
  CHECK(met[1] > 3);   // the rest is retried unchanged
}

}  // namespace

TEST_CASE("Out of memory at any allocation of a step gives the same bits as the step in smaller parts",
          "[train][out_of_memory]") {
  BudgetAllocator::instance();
  check_every_fault({.grad_clip = 1.0}, 1);
}

TEST_CASE("Out of memory at any allocation of an accumulated step gives the same bits as the step in smaller parts",
          "[train][out_of_memory]") {
  BudgetAllocator::instance();
  check_every_fault({.precision = Precision::kBf16, .grad_accum_steps = 3, .grad_clip = 1.0}, 1);
}

TEST_CASE("Out of memory while a schedule on the device advances gives the same bits", "[train][out_of_memory]") {
  BudgetAllocator& memory = BudgetAllocator::instance();
  const auto run = [&](int64_t split, int64_t fault, bool& failed) {
    torch::manual_seed(1);
    const auto devices = DeviceReplicator::create([] { return BatchNormNet(); }).value();
    AdamW optimizer({.lr = 1e-2, .capturable = true});
    for (auto& group : default_param_groups(*devices->module())) optimizer.add_param_group(std::move(group));
    LRScheduler scheduler(optimizer, create_schedule({.name = "cosine", .total_steps = 9, .warmup_steps = 2}).value());
    TrainStep step(*devices, optimizer, {}, &scheduler);
    step.set_split(split);
    const LossFunction loss = make_loss_function(net_loss);
    const Batch batch = random_batch(kRows, 1);
    memory.fail_after(fault);
    step(batch, loss);
    failed = memory.disarm();
    std::vector<at::Tensor> state = trainkit::detail::OptimizerParts::of(optimizer).rates.on_device();
    step(random_batch(kRows, 2), loss);
    for (const at::Tensor& tensor : devices->module()->parameters()) state.push_back(tensor.detach().clone());
    return std::pair(step.split(), state);
  };
  bool failed = true;
  std::map<int64_t, std::vector<at::Tensor>> expected;
  for (const int64_t split : {1, 2}) expected[split] = run(split, 1'000'000, failed).second;
  int64_t fault = 0;
  for (failed = true; failed; ++fault) {
    REQUIRE(fault < 5000);
    const auto [split, state] = run(1, fault, failed);
    INFO("allocation " << fault << ", split " << split);
    CHECK(same_bits(state, expected[split]));
  }
  CHECK(fault > 50);
}

TEST_CASE("Out of memory on one of two replicas gives the same bits as the step in smaller parts",
          "[train][out_of_memory]") {
  BudgetAllocator::instance();
  bool failed = false;
  std::map<int64_t, Outcome> expected;
  for (const int64_t split : {1, 2}) expected[split] = run_with({.grad_clip = 1.0}, 2, split, -1, failed);
  // Two threads allocate in any order, so the fault hits either.
  for (int64_t fault = 0; fault < 60; ++fault) {
    const Outcome outcome = run_with({.grad_clip = 1.0}, 2, 1, fault, failed);
    INFO("fault at allocation " << fault << ", split " << outcome.split);
    REQUIRE(expected.count(outcome.split) == 1);
    CHECK(same_bits(outcome.state, expected[outcome.split].state));
  }
}

TEST_CASE("A first step that is retried in parts agrees on the weight unit of the parts", "[train][out_of_memory]") {
  const auto unit = [](int64_t split, int failing_call) {
    Training training({.grad_accum_steps = 2}, /*replicas=*/2);
    training.step.set_split(split);
    std::atomic<int> calls = 0;
    const LossFunction loss = make_loss_function([&](BatchNormNet& model, const Batch& batch) {
      if (++calls == failing_call) C10_THROW_ERROR(OutOfMemoryError, "no memory");
      LossOutput output = net_loss(model, batch);
      output.weight = batch["x"].square().sum().item<double>();
      return output;
    });
    for (const uint64_t seed : {1, 2}) training.step.accumulate(random_batch(kRows, seed), loss);
    training.step.finish();
    CHECK(training.step.split() == 2);
    return training.step.weight_unit();
  };
  CHECK(unit(1, /*failing_call=*/3) == unit(2, 0));  // in the second micro-batch
}

TEST_CASE("A step that fits only in parts is split until it fits, and later steps keep the split",
          "[train][out_of_memory]") {
  BudgetAllocator& memory = BudgetAllocator::instance();
  const LossFunction wide = make_loss_function(wide_loss);
  const Batch batch = random_batch(16, 3);
  Training limited({});
  limited.step(batch, wide);
  const int64_t standing = memory.live();
  memory.limit(standing + 6 * 4 * 80'000);
  const StepMetrics metrics = limited.step(batch, wide);
  CHECK(limited.step.split() == 4);
  CHECK(memory.live() <= standing + 1000);
  limited.step(batch, wide);
  CHECK(limited.step.split() == 4);
  memory.limit(0);
  CHECK(std::isfinite(metrics.loss.item<double>()));
}

TEST_CASE("A skipped step is counted once and leaves all state unchanged, whichever allocation fails",
          "[train][out_of_memory]") {
  BudgetAllocator& memory = BudgetAllocator::instance();
  const auto weights = [](const Training& training) {
    auto all = training.state();
    all.pop_back();  // the generator has advanced
    return all;
  };
  int64_t fault = 0;
  for (bool failed = true; failed; ++fault) {
    REQUIRE(fault < 5000);
    Training training({.skip_nonfinite = true});
    training.run(1);
    const auto before = weights(training);
    const Batch bad = random_batch(kRows, 5);
    bad["x"][0][0] = INFINITY;
    memory.fail_after(fault);
    training.step.accumulate(bad, make_loss_function(net_loss));
    const StepMetrics metrics = training.step.finish();
    failed = memory.disarm();
    INFO("fault at allocation " << fault);
    CHECK(metrics.skipped_in_a_row.item<double>() == 1);
    CHECK(same_bits(weights(training), before));
    CHECK_THAT(metrics.first_nonfinite,
               Catch::Equals("the loss is not finite") || Catch::Contains("took inf, in 'hidden'"));
  }
  CHECK(fault > 50);
}

TEST_CASE("Finding the non-finite tensor takes no more memory than the step", "[train][out_of_memory]") {
  BudgetAllocator& memory = BudgetAllocator::instance();
  const LossFunction wide = make_loss_function(wide_loss);
  const Batch batch = random_batch(16, 3);
  Training limited({.skip_nonfinite = true});
  limited.step(batch, wide);
  memory.limit(memory.live() + 6 * 4 * 80'000);
  batch["x"][15][0] = INFINITY;
  const StepMetrics metrics = limited.step(batch, wide);
  memory.limit(0);
  CHECK(limited.step.split() == 4);
  CHECK(metrics.skipped_in_a_row.item<double>() == 1);
  CHECK_THAT(metrics.first_nonfinite, Catch::Contains("'hidden'"));
}

TEST_CASE("At one row per part release_memory is called, and then the error is returned", "[train][out_of_memory]") {
  BudgetAllocator& memory = BudgetAllocator::instance();
  at::Tensor cache = at::empty({1'000'000});
  int asked = 0;
  Training training({.release_memory = [&] {
    ++asked;
    const bool had = cache.defined();
    cache.reset();
    return had;
  }});
  const Batch one = random_batch(1, 3);
  const LossFunction hungry = make_loss_function([](BatchNormNet& model, const Batch& batch) {
    const at::Tensor large = at::zeros({300'000});
    return at::cross_entropy_loss(model->forward(batch["x"]) + large[0] * 0, batch["y"]);
  });
  training.devices->module()->eval();  // BatchNorm needs more than a row
  training.step(one, hungry);
  memory.limit(memory.live() + 1'000'000);
  training.step(one, hungry);  // the cache is freed, and memory suffices
  CHECK(asked == 1);
  CHECK(!cache.defined());
  CHECK(training.step.split() == 1);
  memory.limit(memory.live() + 1'000'000);
  const auto before = training.state();
  CHECK_THROWS_AS(training.step(one, hungry), c10::OutOfMemoryError);
  CHECK(asked == 2);
  memory.limit(0);
  CHECK(same_bits(training.state(), before));
  training.step(one, hungry);  // in use again
}

TEST_CASE("A run without memory for a single row ends with exit code 7", "[train][out_of_memory]") {
  BudgetAllocator& memory = BudgetAllocator::instance();
  const auto devices = DeviceReplicator::create([] { return TinyNet(); }).value();
  const auto loader = Prefetcher::create(tiny_dataset(16), SequentialSampler(16), {.batch_size = 4}).value();
  auto trainer = Trainer::create(*devices, AdamW({.lr = 1e-3}), {.max_epochs = 1}).value();
  int calls = 0;
  const auto result = trainer.fit(*loader, [&](TinyNet& model, const Batch& batch) {
    if (calls++ == 0) memory.limit(memory.live() + 100'000);
    at::empty({100'000});
    return tiny_loss(model, batch);
  });
  memory.limit(0);
  REQUIRE(!result.ok());
  CHECK(static_cast<int>(exit_code(result.status())) == 7);
  CHECK(calls == 3);  // 4 rows, 2, 1
}

TEST_CASE("A generic error that an allocator throws for lack of memory is recognised", "[train][out_of_memory]") {
  Training training({});
  int calls = 0;
  const LossFunction loss = make_loss_function([&](BatchNormNet& model, const Batch& batch) {
    if (calls++ == 0) TORCH_CHECK(false, "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried ...");
    return net_loss(model, batch);
  });
  training.step(random_batch(8, 1), loss);
  CHECK(training.step.split() == 2);
  CHECK(calls == 3);
}

TEST_CASE("Out of memory at any allocation of a step, on one rank or on both, keeps the ranks in step",
          "[train][out_of_memory][ranks]") {
  for (const std::string& scenario : std::vector<std::string>{"oom_on_one", "oom_on_both", "oom_accumulated"}) {
    const TempDir folder;
    Ranks job("train_rank", 2, {scenario, folder.path().string()}, folder.path().string());
    for (int rank = 0; rank < 2; ++rank) {
      const int code = job.wait(rank, std::chrono::seconds(400));
      INFO(scenario << ": " << job.err(rank) << job.out(rank));
      REQUIRE(code == 0);
      CHECK_THAT(job.out(rank), Catch::StartsWith("every fault met"));
      CHECK_THAT(job.out(rank), !Catch::Contains("differs"));
      CHECK_THAT(job.out(rank), !Catch::Contains("leaks"));
    }
  }
}
