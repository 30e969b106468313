// Ranks that divide gradients and optimizer state among them; see parameter_shards.h.
#include "distributed/rank_threads.h"
#include "distributed/replicas/replica_strategy.h"
#include "test_util.h"
#include "train/divided/sharded_state.h"
#include "train/sharded_net.h"
#include "trainkit/core/status.h"
#include "trainkit/data/tensor_dataset.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/optim/adagrad.h"
#include "trainkit/optim/adam.h"
#include "trainkit/optim/rmsprop.h"
#include "trainkit/optim/sgd.h"
#include "trainkit/train/train_step.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

constexpr int64_t kShardRows = 12, kShardSteps = 4;

struct Setup {
  Sharding sharding = Sharding::kNone;
  std::string optimizer = "adamw";
  int64_t ranks = 2;
  int64_t grad_accum_steps = 1;
  double grad_clip = 0;
  double ema_decay = 0;
  bool shared_memory = true;
  GradientCompression compression = GradientCompression::kNone;
  bool idle_at_first = false;  // no row of rank 1 counts in the first step
  double bad_row = 0;          // replaces a number of the first rank's second batch
};

struct ShardedRun {
  std::vector<double> losses;
  std::vector<at::Tensor> weights;
  std::map<std::string, at::Tensor> state, averages;  // on rank 0
  int64_t state_bytes = 0;
};

std::unique_ptr<Optimizer> make_optimizer(const std::string& name) {
  if (name == "adam") return std::make_unique<Adam>(AdamOptions{.lr = 0.01});
  if (name == "sgd") return std::make_unique<SGD>(SGDOptions{.lr = 0.05, .momentum = 0.9});
  if (name == "rmsprop") {
    // eps: a centered variance near 0 would enlarge the rounding of sums.
    return std::make_unique<RMSprop>(RMSpropOptions{.lr = 0.005, .eps = 0.01, .momentum = 0.5, .centered = true});
  }
  if (name == "adagrad") {
    return std::make_unique<Adagrad>(AdagradOptions{.lr = 0.05, .initial_accumulator_value = 0.1});
  }
  if (name == "muon") return std::make_unique<Muon>(MuonOptions{.lr = 0.01});
  return std::make_unique<AdamW>(AdamWOptions{.lr = 0.01});
}

LossOutput squares(torch::nn::Module& model, const Batch& batch) {
  const at::Tensor out = model.as<ShardedNetImpl>()->forward(batch["x"]);
  return out.square().mean();
}

Batch rows_of(int64_t step, int64_t micro_batch, int64_t rank, const Setup& setup) {
  at::Tensor x = at::arange(kShardRows * 7, at::kFloat)
                     .view({kShardRows, 7})
                     .add(static_cast<double>(step * 31 + micro_batch * 5))
                     .sin();
  if (rank == 0 && step == 2 && micro_batch == 0 && setup.bad_row != 0) x[0][0] = setup.bad_row;
  const int64_t share = kShardRows / setup.ranks;
  const std::vector<FieldSpec> fields{{.name = "x", .dtype = at::kFloat, .shape = {7}}};
  return Batch(std::make_shared<const std::vector<FieldSpec>>(fields), {x.narrow(0, rank * share, share).contiguous()});
}

absl::Status train(ProcessGroup& ranks, const Setup& setup, ShardedRun& outcome) try {
  DeviceReplicatorOptions options{.strategy = Strategy::kDistributed,
                                  .device = at::kCPU,
                                  .process_group = std::shared_ptr<ProcessGroup>(&ranks, [](ProcessGroup*) {}),
                                  .gradient_compression = setup.compression,
                                  .sharding = setup.sharding,
                                  .bucket_bytes = 2048,
                                  .first_bucket_bytes = 512};
  TRAINKIT_ASSIGN_OR_RETURN(const auto devices, DeviceReplicator::create([] { return ShardedNet(); }, options));
  double shift = 0;
  for (const at::Tensor& parameter : devices->module()->parameters()) {
    const at::NoGradGuard no_grad;
    parameter.copy_(
        at::arange(parameter.numel(), at::kFloat).mul(0.7).add(++shift).cos().mul(0.3).view(parameter.sizes()));
  }
  const auto optimizer = make_optimizer(setup.optimizer);
  int64_t now = 0;
  const LossFunction loss = [&](torch::nn::Module& model, const Batch& batch) {
    const bool counts = !setup.idle_at_first || now > 1 || ranks.rank() != 1;
    return LossOutput(squares(model, batch).loss, counts ? 1.0 : 0.0);
  };
  TrainStep step(*devices, *optimizer,
                 {.grad_accum_steps = setup.grad_accum_steps,
                  .grad_clip = setup.grad_clip,
                  .skip_nonfinite = setup.bad_row != 0,
                  .ema_decay = setup.ema_decay});
  for (int64_t s = 1; s <= kShardSteps; ++s) {
    now = s;
    for (int64_t m = 0; m < setup.grad_accum_steps; ++m) step.accumulate(rows_of(s, m, ranks.rank(), setup), loss);
    StepMetrics metrics = step.finish();
    step.average_over_ranks(metrics);
    outcome.losses.push_back(metrics.loss.item<double>());
  }
  step.swap_averages();  // for an evaluation
  step.swap_averages();
  for (const at::Tensor& parameter : devices->module()->parameters())
    outcome.weights.push_back(parameter.detach().clone());
  for (const auto& [name, value] : optimizer->state_dict()) {
    const auto* tensor = std::get_if<at::Tensor>(&value);
    if (tensor && !name.ends_with(".step")) outcome.state_bytes += static_cast<int64_t>(tensor->nbytes());
  }
  const CheckpointContents whole = whole_checkpoint(*devices->module(), *optimizer, step.averages(),
                                                    trainkit::detail::strategy_of(*devices).shards());
  for (const auto& [name, tensor] : whole.optimizer) {
    if (tensor.defined()) outcome.state[name] = tensor.clone();
  }
  for (const auto& [name, tensor] : whole.model) {
    if (tensor.defined()) outcome.averages[name] = tensor.clone();
  }
  return absl::OkStatus();
} catch (...) {
  return status_from_current_exception();
}

std::vector<ShardedRun> train(const Setup& setup) {
  std::vector<ShardedRun> outcomes(static_cast<size_t>(setup.ranks));
  const auto texts =
      on_ranks(setup.ranks,
               [&](ProcessGroup& ranks) { return train(ranks, setup, outcomes[static_cast<size_t>(ranks.rank())]); },
               {.timeout = std::chrono::seconds(20), .shared_memory = setup.shared_memory});
  for (const std::string& text : texts) CHECK(text == "ok");
  return outcomes;
}

void check_equal(const std::vector<ShardedRun>& sharded, const std::vector<ShardedRun>& whole, double tolerance) {
  for (size_t rank = 0; rank < whole.size(); ++rank) {
    INFO("rank " << rank);
    REQUIRE(sharded[rank].losses.size() == whole[rank].losses.size());
    for (size_t i = 0; i < whole[rank].losses.size(); ++i) {
      CHECK(std::abs(sharded[rank].losses[i] - whole[rank].losses[i]) <= tolerance);
    }
    REQUIRE(sharded[rank].weights.size() == whole[rank].weights.size());
    for (size_t i = 0; i < whole[rank].weights.size(); ++i) {
      CHECK(difference(sharded[rank].weights[i], whole[rank].weights[i]) <= tolerance);
    }
  }
  CHECK(difference(sharded[0].state, whole[0].state) <= tolerance);
  CHECK(difference(sharded[0].averages, whole[0].averages) <= tolerance);
}

}  // namespace

TEST_CASE("Ranks with a part of the optimizer's state train as ranks with all of it", "[train][sharding]") {
  const auto optimizer = GENERATE(as<std::string>(), "adamw", "adam", "sgd", "muon", "rmsprop", "adagrad");
  const int64_t ranks = GENERATE(1, 2, 3);
  const int64_t micro_batches = GENERATE(1, 3);
  INFO(optimizer << " on " << ranks << " ranks, " << micro_batches << " micro-batches");
  Setup setup{.optimizer = optimizer, .ranks = ranks, .grad_accum_steps = micro_batches, .ema_decay = 0.9};
  const auto whole = train(setup);
  setup.sharding = Sharding::kOptimizer;
  const auto sharded = train(setup);
  check_equal(sharded, whole, 0);  // sums have one order
  if (ranks > 1) CHECK(sharded[0].state_bytes < whole[0].state_bytes * 9 / 10);
  setup.sharding = Sharding::kGradients;
  // Sums over the ranks come before those over micro-batches. Muon computes in bfloat16, which enlarges last bits.
  if (optimizer == "muon" && micro_batches > 1) {
    CHECK(std::abs(train(setup)[0].losses.back() - whole[0].losses.back()) < 1e-2);
  } else {
    check_equal(train(setup), whole, micro_batches == 1 ? 0 : 1e-6);
  }
}

TEST_CASE("Sharded ranks train if no row of one of them counts in the first step", "[train][sharding]") {
  const auto sharding = GENERATE(Sharding::kOptimizer, Sharding::kGradients);
  const auto whole = train({.idle_at_first = true});
  check_equal(train({.sharding = sharding, .idle_at_first = true}), whole, 1e-6);
}

TEST_CASE("Sharded ranks clip by the norm of all gradients", "[train][sharding]") {
  const auto sharding = GENERATE(Sharding::kOptimizer, Sharding::kGradients);
  const bool shared_memory = GENERATE(true, false);
  Setup setup{.ranks = 2, .grad_clip = 0.05, .shared_memory = shared_memory};
  const auto whole = train(setup);
  setup.sharding = sharding;
  check_equal(train(setup), whole, 1e-6);
}

TEST_CASE("Sharded ranks skip a step if a gradient of any rank is not finite", "[train][sharding]") {
  const auto sharding = GENERATE(Sharding::kOptimizer, Sharding::kGradients);
  Setup setup{.ranks = 3, .bad_row = INFINITY};
  const auto whole = train(setup);
  CHECK(std::isfinite(whole[0].weights[0].sum().item<double>()));
  setup.sharding = sharding;
  const auto sharded = train(setup);
  for (size_t i = 0; i < whole[0].weights.size(); ++i) {
    CHECK(difference(sharded[1].weights[i], whole[1].weights[i]) <= 1e-6);
  }
}

TEST_CASE("Sharded ranks send gradients in 16 bits", "[train][sharding]") {
  const auto sharding = GENERATE(Sharding::kOptimizer, Sharding::kGradients);
  Setup setup{.ranks = 2, .shared_memory = false, .compression = GradientCompression::kBf16};
  const auto whole = train(setup);
  setup.sharding = sharding;
  check_equal(train(setup), whole, 0);
}

TEST_CASE("A parameter without a gradient is an error that names it, unless an earlier micro-batch has used it",
          "[train][sharding]") {
  const auto sharding = GENERATE(Sharding::kOptimizer, Sharding::kGradients);
  for (const bool is_used : {true, false}) {
    const auto texts = on_ranks(2, [&](ProcessGroup& ranks) -> absl::Status {
      try {
        const DeviceReplicatorOptions options{.strategy = Strategy::kDistributed,
                                              .device = at::kCPU,
                                              .process_group = {&ranks, [](ProcessGroup*) {}},
                                              .sharding = sharding};
        const auto devices = DeviceReplicator::create([] { return ShardedNet(); }, options).value();
        AdamW optimizer({.lr = 0.01});
        TrainStep step(*devices, optimizer, {.grad_accum_steps = 2});
        const LossFunction whole = squares;
        const LossFunction first_layer = [](torch::nn::Module& model, const Batch& batch) -> LossOutput {
          return model.as<ShardedNetImpl>()->in(batch["x"]).square().mean();
        };
        step.accumulate(rows_of(1, 0, ranks.rank(), {}), is_used ? whole : first_layer);
        step.accumulate(rows_of(1, 1, ranks.rank(), {}), first_layer);
        step.finish();
        return absl::OkStatus();
      } catch (...) {
        return status_from_current_exception();
      }
    });
    for (const std::string& text : texts) {
      if (is_used) CHECK(text == "ok");
      if (!is_used) CHECK_THAT(text, Catch::Contains("the loss did not reach wide.weight"));
    }
  }
}

TEST_CASE("Ranks with different --shard report it", "[train][sharding]") {
  const auto texts = on_ranks(2, [&](ProcessGroup& ranks) {
    ShardedRun outcome;
    return train(ranks, {.sharding = ranks.rank() == 0 ? Sharding::kNone : Sharding::kOptimizer}, outcome);
  });
  for (const std::string& text : texts) {
    CHECK_THAT(text, Catch::StartsWith("error[dist.digest] shard: differs between ranks (got 'optimizer on rank 1', "
                                       "expected 'none' as on rank 0)"));
  }
}

TEST_CASE("A rank's part of a channels_last weight has the numbers of its place in memory", "[train][sharding]") {
  const at::Tensor numbers = at::arange(4 * 3 * 5 * 5, at::kFloat).view({4, 3, 5, 5});
  std::vector<at::Tensor> parts;
  for (const int64_t rank : {0, 1, 2}) {
    const at::Tensor bias = at::ones({4}).requires_grad_();
    const at::Tensor weight = numbers.contiguous(at::MemoryFormat::ChannelsLast).clone().requires_grad_();
    trainkit::detail::ShardCollectives alone;
    alone.rank = rank;
    alone.ranks = 3;
    const trainkit::detail::ParameterShards shards({weight, bias}, nullptr, {.sharding = Sharding::kOptimizer}, alone);
    CHECK(weight.is_contiguous(at::MemoryFormat::ChannelsLast));
    CHECK(torch::equal(weight, numbers));
    CHECK(torch::equal(shards.layout().part_of(0, numbers), shards.part(weight)));
    parts.push_back(shards.part(weight).clone());
  }
  CHECK(torch::equal(at::cat(parts), numbers.permute({0, 2, 3, 1}).reshape({-1})));
}

TEST_CASE("Buckets give every rank about the same number of parameters and cut no whole matrix", "[train][sharding]") {
  std::vector<at::Tensor> parameters;
  std::vector<char> is_whole;
  for (int layer = 0; layer < 12; ++layer) {
    for (const auto& [rows, columns] : {std::pair(192, 64), {64, 64}, {256, 64}, {64, 256}}) {
      parameters.push_back(at::empty({rows, columns}));
      is_whole.push_back(1);
      parameters.push_back(at::empty({rows}));
      is_whole.push_back(0);
    }
  }
  const int64_t ranks = GENERATE(1, 2, 4, 48, 64);
  const auto buckets = trainkit::detail::divide_parameters(parameters, is_whole, ranks, 1 << 16, 1 << 19);
  std::vector<int> seen(parameters.size());
  int64_t numbers = 0, places = 0;
  for (const auto& bucket : buckets) {
    places += ranks * bucket.part;
    CHECK(bucket.part % 16 == 0);
    for (size_t i = 0; i < bucket.parameters.size(); ++i) {
      const size_t p = bucket.parameters[i];
      ++seen[p];
      numbers += parameters[p].numel();
      CHECK(bucket.begins[i] % 16 == 0);
      CHECK(bucket.begins[i] + parameters[p].numel() <= ranks * bucket.part);
      const int64_t last = bucket.begins[i] + parameters[p].numel() - 1;
      if (is_whole[p]) CHECK(bucket.begins[i] / bucket.part == last / bucket.part);
    }
  }
  CHECK(std::count(seen.begin(), seen.end(), 1) == static_cast<int64_t>(seen.size()));
  if (ranks <= 4) CHECK(static_cast<double>(places) < 1.1 * static_cast<double>(numbers));
}

TEST_CASE("The parts of a bucket hold all of it, whatever the number of ranks", "[train][sharding]") {
  // 17 * 16 numbers are fewer than 288.
  const auto buckets = trainkit::detail::divide_parameters({at::empty({288})}, {0}, 17, 1 << 16, 1 << 19);
  REQUIRE(buckets.size() == 1);
  CHECK(buckets[0].part == 32);
}

TEST_CASE("Sharded ranks that run without a step are refused", "[train][sharding]") {
  const auto texts = on_ranks(2, [](ProcessGroup& group) -> absl::Status {
    const auto devices =
        DeviceReplicator::create(
            [] { return torch::nn::Linear(4, 2); },
            {.device = at::kCPU, .process_group = {&group, [](ProcessGroup*) {}}, .sharding = Sharding::kOptimizer})
            .value();
    try {
      devices->run([&](int64_t) { return devices->module()->parameters()[0].sum(); });
      return absl::InternalError("it ran");
    } catch (const c10::Error& error) {
      const std::string problem = error.what_without_backtrace();
      return problem.find("needs a TrainStep") != std::string::npos ? absl::OkStatus() : absl::InternalError(problem);
    }
  });
  for (const std::string& text : texts) CHECK(text == "ok");
}
