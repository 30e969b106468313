// Ranks that divide gradients and optimizer state among them; see parameter_shards.h.
#include "../distributed/rank_threads.h"
#include "test_util.h"
#include "train/sharded_state.h"
#include "trainkit/core/status.h"
#include "trainkit/data/tensor_dataset.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/optim/adam.h"
#include "trainkit/optim/sgd.h"
#include "trainkit/train/train_step.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

constexpr int64_t kShardRows = 12, kShardSteps = 4;

/// Layers whose sizes divide neither by the ranks nor by the alignment of a shard; the last one is used twice.
struct ShardedNetImpl : torch::nn::Module {
  ShardedNetImpl() {
    in = register_module("in", torch::nn::Linear(7, 33));
    wide = register_module("wide", torch::nn::Linear(33, 33));
    out = register_module("out", torch::nn::Linear(33, 3));
    unused = register_parameter("frozen", torch::ones({5}), /*requires_grad=*/false);
  }
  at::Tensor forward(const at::Tensor& x) { return out(wide(wide(in(x).relu()).relu()).relu()); }
  torch::nn::Linear in{nullptr}, wide{nullptr}, out{nullptr};
  at::Tensor unused;
};
TORCH_MODULE(ShardedNet);

struct Setup {
  Sharding sharding = Sharding::kNone;
  std::string optimizer = "adamw";
  int64_t ranks = 2;
  int64_t grad_accum_steps = 1;
  double grad_clip = 0;
  double ema_decay = 0;
  bool shared_memory = true;
  GradientCompression compression = GradientCompression::kNone;
  double bad_row = 0;  // replaces a number of the first rank's second batch
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

/// The optimizer's tensors and, in the model, the averages; whole on rank 0.
CheckpointContents whole_checkpoint(const torch::nn::Module& model, const Optimizer& optimizer,
                                    const NamedTensors& averages, const trainkit::detail::ParameterShards* shards) {
  CheckpointContents contents;
  contents.model = averages;
  for (const auto& [name, value] : optimizer.state_dict()) {
    if (const auto* tensor = std::get_if<at::Tensor>(&value)) contents.optimizer.emplace_back(name, *tensor);
  }
  if (!shards) return contents;
  const auto divided = trainkit::detail::keep_own_parts(contents, averages, model, optimizer, *shards);
  CHECK(trainkit::detail::gather_parts(contents, divided, /*all=*/true, *shards).ok());
  return contents;
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
  const LossFunction loss = squares;
  TrainStep step(*devices, *optimizer,
                 {.grad_accum_steps = setup.grad_accum_steps,
                  .grad_clip = setup.grad_clip,
                  .skip_nonfinite = setup.bad_row != 0,
                  .ema_decay = setup.ema_decay});
  for (int64_t s = 1; s <= kShardSteps; ++s) {
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
  const CheckpointContents whole = whole_checkpoint(*devices->module(), *optimizer, step.averages(), devices->shards());
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

double difference(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined() || a.sizes() != b.sizes()) return INFINITY;
  return (a - b).abs().max().item<double>();
}

double difference(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b) {
  double most = a.size() == b.size() ? 0 : INFINITY;
  for (const auto& [name, tensor] : a)
    most = std::max(most, b.contains(name) ? difference(tensor, b.at(name)) : INFINITY);
  return most;
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
  const auto optimizer = GENERATE(as<std::string>(), "adamw", "adam", "sgd", "muon");
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
    CHECK(torch::equal(shards.part_of(shards.part(weight), numbers), shards.part(weight)));
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

namespace {

/// Ranks as threads that meet in each collective: checks that all make the same calls, and exchanges the numbers.
class Exchange {
 public:
  explicit Exchange(int64_t ranks) : buffers_(static_cast<size_t>(ranks)) {}

  trainkit::detail::ShardCollectives of(int64_t rank) {
    const auto meet_as = [this, rank](const char* call) {
      return [this, rank, call](const at::Tensor& buffer) {
        meet(rank, call, buffer);
        return trainkit::detail::ShardCollectives::Work();
      };
    };
    return {.rank = rank,
            .ranks = static_cast<int64_t>(buffers_.size()),
            .reduce_scatter = meet_as("reduce_scatter"),
            .all_gather = meet_as("all_gather"),
            .wait = [](const auto&, const std::string&) {},
            .all_reduce = [this, rank](const at::Tensor& values) { meet(rank, "all_reduce", values); },
            .gather_on_host =
                [this, rank](const at::Tensor& part) {
                  const at::Tensor all =
                      at::zeros({part.numel() * static_cast<int64_t>(buffers_.size())}, part.options());
                  all.narrow(0, rank * part.numel(), part.numel()).copy_(part);
                  meet(rank, "all_gather", all);
                  return rank == 0 ? all : at::Tensor();
                }};
  }

  int64_t messages = 0, bytes = 0;  // bytes that a rank sends over a ring
  std::vector<std::string> problems;

 private:
  void meet(int64_t rank, const std::string& call, const at::Tensor& buffer) {
    std::unique_lock lock(mutex_);
    const int64_t round = round_;
    if (arrived_ == 0) call_ = call;
    if (call != call_) problems.push_back("rank " + std::to_string(rank) + " calls " + call + ", others " + call_);
    buffers_[static_cast<size_t>(rank)] = buffer;
    if (++arrived_ < static_cast<int64_t>(buffers_.size())) {
      changed_.wait(lock, [&] { return round_ != round; });
      return;
    }
    exchange();
    arrived_ = 0;
    ++round_;
    changed_.notify_all();
  }

  void exchange() {
    const at::NoGradGuard no_grad;
    const auto ranks = static_cast<int64_t>(buffers_.size());
    for (const at::Tensor& buffer : buffers_) {
      if (buffer.numel() != buffers_.front().numel()) problems.push_back(call_ + " of buffers of different sizes");
    }
    if (call_ != "all_reduce") {
      ++messages;
      bytes += static_cast<int64_t>(buffers_.front().nbytes()) * (ranks - 1) / ranks;
    }
    const int64_t part = buffers_.front().numel() / ranks;
    at::Tensor sum = call_ == "all_gather" ? at::Tensor() : at::zeros_like(buffers_.front());
    for (const at::Tensor& buffer : buffers_) {
      if (sum.defined()) sum.add_(buffer);
    }
    std::vector<at::Tensor> parts;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const at::Tensor& own = buffers_[static_cast<size_t>(rank)];
      if (call_ == "all_gather") parts.push_back(own.narrow(0, rank * part, part).clone());
      if (call_ == "reduce_scatter")
        own.fill_(NAN).narrow(0, rank * part, part).copy_(sum.narrow(0, rank * part, part));
      if (call_ == "all_reduce") own.copy_(sum);
    }
    if (call_ != "all_gather") return;
    const at::Tensor all = at::cat(parts);
    for (const at::Tensor& buffer : buffers_) at::Tensor(buffer).copy_(all);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<at::Tensor> buffers_;
  std::string call_;
  int64_t arrived_ = 0, round_ = 0;
};

constexpr int64_t kManyRows = 192;

struct ManyRanks {
  std::vector<at::Tensor> weights;          // of the last rank
  std::map<std::string, at::Tensor> state;  // whole
  int64_t messages = 0, bytes = 0;          // of a step
};

/// Takes `steps` steps of AdamW on `ranks` ranks in threads, from these weights and this state.
ManyRanks train_many(int64_t ranks, int64_t steps, Sharding sharding, const std::vector<at::Tensor>& weights,
                     const std::map<std::string, at::Tensor>& state) {
  Exchange exchange(ranks);
  ManyRanks result;
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      ShardedNet net;
      std::vector<NamedParameter> named = trainable_parameters(*net);
      std::vector<at::Tensor> parameters;
      for (size_t i = 0; i < named.size(); ++i) {
        const at::NoGradGuard no_grad;
        named[i].tensor.copy_(weights[i]);
        parameters.push_back(named[i].tensor);
      }
      const DeviceReplicatorOptions options{.sharding = sharding, .bucket_bytes = 2048, .first_bucket_bytes = 512};
      trainkit::detail::ParameterShards shards(parameters, nullptr, options, exchange.of(rank));
      AdamW optimizer({.lr = 0.01});
      for (NamedParameter& parameter : named) parameter.tensor = shards.part(parameter.tensor);
      optimizer.add_shards(
          {{.params = named}}, [&](const auto& values) { shards.all_reduce(values.front()); },
          [&](const at::Tensor& part) { return shards.bucket_of(part); },
          [&](size_t bucket) { shards.start_gathering(bucket); });
      StateDict own = optimizer.state_dict();
      for (auto& [name, value] : own) {
        if (const auto found = state.find(name); found != state.end()) value = found->second;
      }
      if (!state.empty()) own["step"] = static_cast<int64_t>(state.at("state.in.weight.step").item<double>());
      CHECK(optimizer.load_state_dict(trainkit::detail::parts_of_state(own, optimizer, shards)).ok());
      for (int64_t step = 0; step < steps; ++step) {
        const int64_t before = exchange.messages, bytes_before = exchange.bytes;
        shards.begin(/*reduces=*/true);
        const at::Tensor rows = at::arange(7 * kManyRows, at::kFloat).view({kManyRows, 7}).sin();
        const int64_t share = kManyRows / ranks;
        (net->forward(rows.narrow(0, rank * share, share)).square().sum() / kManyRows).backward();
        shards.end(/*contribute=*/true);
        clip_grad_norm_(optimizer, 0.5);
        optimizer.step();
        shards.gather_weights();
        shards.release_gradients();
        if (rank == 0) result.messages = exchange.messages - before, result.bytes = exchange.bytes - bytes_before;
      }
      for (const auto& [name, tensor] : whole_checkpoint(torch::nn::Module(), optimizer, {}, &shards).optimizer) {
        if (rank == 0) result.state[name] = tensor.clone();
      }
      if (rank + 1 == ranks) {
        for (const at::Tensor& parameter : parameters) result.weights.push_back(parameter.detach().clone());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(exchange.problems == std::vector<std::string>());
  return result;
}

}  // namespace

TEST_CASE("Up to 64 ranks make the same calls, and 48 continue what 64 have saved", "[train][sharding]") {
  const auto sharding = GENERATE(Sharding::kOptimizer, Sharding::kGradients);
  std::vector<at::Tensor> weights;
  for (const NamedParameter& parameter : trainable_parameters(*ShardedNet())) {
    const double start = static_cast<double>(weights.size());
    const at::Tensor numbers = at::arange(parameter.tensor.numel(), at::kFloat).mul(0.7).add(start).cos().mul(0.3);
    weights.push_back(numbers.view(parameter.tensor.sizes()));
  }
  const ManyRanks one = train_many(1, 6, sharding, weights, {});
  for (const int64_t ranks : {8, 16, 32, 48, 64}) {
    INFO(ranks << " ranks");
    const ManyRanks first = train_many(ranks, 3, sharding, weights, {});
    CHECK(first.messages == 6);  // three buckets, twice
    const ManyRanks then = train_many(ranks == 64 ? 48 : ranks / 2, 3, sharding, first.weights, first.state);
    CHECK(difference(then.state, one.state) < 1e-4);
    REQUIRE(then.weights.size() == one.weights.size());
    for (size_t i = 0; i < one.weights.size(); ++i) CHECK(difference(then.weights[i], one.weights[i]) < 1e-4);
  }
}
