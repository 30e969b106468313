// Sparse gradients in a step: accumulation, replicas, ranks, averages, non-finite values, refusals.
#include <fmt/format.h>

#include "distributed/rank_threads.h"
#include "test_util.h"
#include "trainkit/core/status.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/optim/adam.h"
#include "trainkit/optim/sgd.h"
#include "trainkit/train/train_step.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

constexpr int64_t kWords = 30;

/// A table with sparse gradients, a table of its own kind, and a dense layer.
struct WordsImpl : torch::nn::Module, HasSparseGradients {
  explicit WordsImpl(bool has_dense = true) {
    table = register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(kWords, 4).sparse(true)));
    own = register_parameter("own", torch::empty({kWords, 4}));
    if (has_dense) out = register_module("out", torch::nn::Linear(4, 3));
    double shift = 0;
    for (const at::Tensor& parameter : parameters()) {
      const at::NoGradGuard no_grad;
      parameter.copy_(at::arange(parameter.numel(), at::kFloat).add(++shift).sin().view(parameter.sizes()));
    }
  }
  at::Tensor loss(const at::Tensor& x) {
    at::Tensor h = torch::tanh(table(x) + at::embedding(own, (x + 1) % kWords, -1, false, /*sparse=*/true)).mean(1);
    return (out ? out(h) : h).square().mean();
  }
  std::vector<at::Tensor> sparse_parameters() const override { return {own}; }
  torch::nn::Embedding table{nullptr};
  at::Tensor own;
  torch::nn::Linear out{nullptr};
};
TORCH_MODULE(Words);

const LossFunction kLoss = [](WordsImpl& words, const Batch& batch) { return words.loss(batch["x"]); };

/// Rows of a step; rank `rank` of `ranks` has its part.
Batch batch_of(int64_t step, int64_t rank = 0, int64_t ranks = 1) {
  constexpr int64_t kRows = 12;
  const at::Tensor all =
      at::arange(kRows * 5, at::kLong).mul(step * 7 + 3).add(step).remainder(kWords).view({kRows, 5});
  const std::vector<FieldSpec> fields{{.name = "x", .dtype = at::kLong, .shape = {5}}};
  return Batch(std::make_shared<const std::vector<FieldSpec>>(fields),
               {all.narrow(0, kRows * rank / ranks, kRows / ranks).clone()});
}

std::vector<at::Tensor> copies_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& parameter : module.parameters()) copies.push_back(parameter.detach().clone());
  return copies;
}

/// Trains five steps of two micro-batches and returns the weights.
std::vector<at::Tensor> train(const DeviceReplicatorOptions& options, bool has_dense, const TrainStepOptions& how = {},
                              int64_t rank = 0, int64_t ranks = 1) {
  const auto devices = DeviceReplicator::create([&] { return Words(has_dense); }, options).value();
  SparseAdam optimizer({.lr = 0.05});
  TrainStepOptions step_options = how;
  step_options.grad_accum_steps = 2;
  TrainStep step(*devices, optimizer, step_options);
  for (int64_t s = 0; s < 5; ++s) {
    step.accumulate(batch_of(2 * s, rank, ranks), kLoss);
    step.accumulate(batch_of(2 * s + 1, rank, ranks), kLoss);
    step.finish();
  }
  return copies_of(*devices->module(devices->replicas() - 1));
}

void check_close(const std::vector<at::Tensor>& some, const std::vector<at::Tensor>& others) {
  REQUIRE(some.size() == others.size());
  for (size_t i = 0; i < some.size(); ++i) {
    INFO(i << "\n" << some[i] << "\n" << others[i]);
    CHECK(some[i].allclose(others[i], 1e-5, 1e-6));
  }
}

}  // namespace

TEST_CASE("Replicas and ranks train sparse gradients as one device, with clipping and gradient accumulation",
          "[train][train_step][ranks]") {
  const bool has_dense = GENERATE(true, false);
  const TrainStepOptions how{.grad_clip = 0.01, .skip_nonfinite = true};
  const std::vector<at::Tensor> one = train({.device = at::kCPU}, has_dense, how);
  for (const bool share : {true, false}) {
    check_close(train({.device = at::kCPU, .cpu_replicas = 3, .share_weights = share}, has_dense, how), one);
  }
  const auto [ranks, shared_memory] = GENERATE(std::pair(2, true), std::pair(3, true), std::pair(2, false));
  const bool unused = GENERATE(false, true);
  std::vector<std::vector<at::Tensor>> weights(static_cast<size_t>(ranks));
  const auto texts = on_ranks(
      ranks,
      [&, count = ranks](ProcessGroup& group) -> absl::Status {
        try {
          weights[static_cast<size_t>(group.rank())] = train(
              {.device = at::kCPU, .process_group = {&group, [](ProcessGroup*) {}}, .find_unused_parameters = unused},
              has_dense, how, group.rank(), count);
          return absl::OkStatus();
        } catch (...) {
          return status_from_current_exception();
        }
      },
      {.timeout = std::chrono::seconds(20), .shared_memory = shared_memory});
  CHECK(texts == std::vector<std::string>(static_cast<size_t>(ranks), "ok"));
  for (const auto& of_rank : weights) {
    check_close(of_rank, one);
    for (size_t i = 0; i < of_rank.size(); ++i) CHECK(of_rank[i].equal(weights[0][i]));  // the same bits
  }
}

TEST_CASE("Ranks with sparse gradients retry a step that failed on one of them, and continue without rows on one",
          "[train][train_step][ranks]") {
  const bool has_dense = GENERATE(true, false);
  std::vector<std::vector<at::Tensor>> weights(2);
  const auto texts = on_ranks(2, [&](ProcessGroup& group) -> absl::Status {
    try {
      const auto devices =
          DeviceReplicator::create([&] { return Words(has_dense); },
                                   {.device = at::kCPU, .process_group = {&group, [](ProcessGroup*) {}}})
              .value();
      SparseAdam optimizer({.lr = 0.05});
      TrainStep step(*devices, optimizer, {});
      bool fails = group.rank() == 1;
      const LossFunction loss = [&](WordsImpl& words, const Batch& batch) {
        if (std::exchange(fails, false)) C10_THROW_ERROR(OutOfMemoryError, "no memory");
        return words.loss(batch["x"]);
      };
      step(batch_of(0, group.rank(), 2), loss);
      step(group.rank() == 0 ? batch_of(1)
                             : Batch(std::make_shared<const std::vector<FieldSpec>>(batch_of(1).fields()),
                                     {at::empty({0, 5}, at::kLong)}),
           loss);
      step(batch_of(2, group.rank(), 2), loss);
      weights[static_cast<size_t>(group.rank())] = copies_of(*devices->module());
      return absl::OkStatus();
    } catch (...) {
      return status_from_current_exception();
    }
  });
  CHECK(texts == std::vector<std::string>(2, "ok"));
  const auto devices = DeviceReplicator::create([&] { return Words(has_dense); }, {.device = at::kCPU}).value();
  SparseAdam optimizer({.lr = 0.05});
  TrainStep step(*devices, optimizer, {});
  for (int64_t s = 0; s < 3; ++s) step(batch_of(s), kLoss);
  for (const auto& of_rank : weights) check_close(of_rank, copies_of(*devices->module()));
}

TEST_CASE("A step with sparse gradients that are not finite is skipped and named", "[train][train_step]") {
  const auto devices = DeviceReplicator::create([] { return Words(); }, {.device = at::kCPU}).value();
  SparseAdam optimizer({.lr = 0.05});
  TrainStep step(*devices, optimizer, {.skip_nonfinite = true, .ema_decay = 0.5});
  const std::vector<at::Tensor> before = copies_of(*devices->module());
  struct Break : torch::autograd::Function<Break> {  // a finite loss with a gradient that is not
    static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                   const torch::autograd::variable_list& gradients) {
      return {gradients[0] * NAN};
    }
  };
  const LossFunction breaks = [](WordsImpl& words, const Batch& batch) {
    return Break::apply(words.table(batch["x"])).mean();
  };
  const StepMetrics metrics = step(batch_of(0), breaks);
  CHECK(metrics.skipped_in_a_row.item<double>() == 1);
  CHECK_THAT(metrics.first_nonfinite, Catch::Contains("the gradient of") && Catch::Contains("table"));
  for (size_t i = 0; i < before.size(); ++i) CHECK(before[i].equal(devices->module()->parameters()[i]));
}

TEST_CASE("Sparse gradients are refused before the first step, with the parameter and the remedy",
          "[train][train_step]") {
  const auto make = [] { return torch::nn::Embedding(torch::nn::EmbeddingOptions(10, 4).sparse(true)); };
  const auto devices = DeviceReplicator::create(make, {.device = at::kCPU}).value();
  SGD optimizer;
  CHECK_THROWS_WITH(TrainStep(*devices, optimizer, {}), Catch::Contains("error[user.sparse] parameter 'weight'") &&
                                                            Catch::Contains("expected SparseAdam") &&
                                                            Catch::Contains("build its layer with sparse(false)"));
  const auto texts = on_ranks(2, [&](ProcessGroup& group) {
    return DeviceReplicator::create(
               make,
               {.device = at::kCPU, .process_group = {&group, [](ProcessGroup*) {}}, .sharding = Sharding::kOptimizer})
        .status();
  });
  for (const std::string& text : texts) {
    CHECK_THAT(text,
               Catch::Contains("parameter 'weight' has sparse gradients, which are not divided: use no sharding"));
  }
}
