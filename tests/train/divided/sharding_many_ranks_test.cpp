// Up to 64 ranks, as threads of this process, that divide gradients and optimizer state among them.
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "optim/optimizer_parts.h"
#include "test_util.h"
#include "train/divided/sharded_state.h"
#include "train/sharded_net.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/optim/adam.h"

using namespace trainkit;
using namespace trainkit::test;

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
      trainkit::detail::add_shards(
          optimizer, {{.params = named}}, [&](const auto& values) { shards.all_reduce(values.front()); },
          {.bucket_of = [&](const at::Tensor& part) { return shards.layout().bucket_of(shards.index_of_part(part)); },
           .on_updated = [&](size_t bucket) { shards.gathering().start(bucket); }});
      StateDict own = optimizer.state_dict();
      for (auto& [name, value] : own) {
        if (const auto found = state.find(name); found != state.end()) value = found->second;
      }
      if (!state.empty()) own["step"] = static_cast<int64_t>(state.at("state.in.weight.step").item<double>());
      const absl::Status loaded = optimizer.load_state_dict(trainkit::detail::parts_of_state(own, optimizer, shards));
      TORCH_CHECK(loaded.ok(), loaded.ToString());
      for (int64_t step = 0; step < steps; ++step) {
        const int64_t before = exchange.messages, bytes_before = exchange.bytes;
        shards.begin(/*reduces=*/true);
        const at::Tensor rows = at::arange(7 * kManyRows, at::kFloat).view({kManyRows, 7}).sin();
        const int64_t share = kManyRows / ranks;
        (net->forward(rows.narrow(0, rank * share, share)).square().sum() / kManyRows).backward();
        shards.reduction().end(/*contribute=*/true);
        clip_grad_norm_(optimizer, 0.5);
        optimizer.step();
        shards.gathering().run();
        shards.reduction().release();
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
