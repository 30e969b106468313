// The order of messages and the sums of a divided training state, with the messages of one rank of two.
#include "distributed/shards/shard_reduction.h"

#include <torch/torch.h>

#include <optional>

#include "distributed/shards/weight_gathering.h"
#include "test_util.h"

using namespace trainkit;
using namespace trainkit::detail;

namespace {

/// Rank 0 of two, of which the other one always sends the gradient 1.
struct HalfOfTwo {
  explicit HalfOfTwo(Sharding sharding) {
    for (const int64_t size : {64, 16}) parameters.push_back(at::zeros({size}).requires_grad_());
    std::vector<at::Tensor> shapes;
    for (const at::Tensor& parameter : parameters) shapes.push_back(at::empty_like(parameter, at::kMeta));
    layout.emplace(shapes, std::vector<char>(2), ShardLayout::Options{.ranks = 2, .first_bytes = 1, .bucket_bytes = 1});
    for (size_t p = 0; p < 2; ++p) {
      parts.push_back(layout->cut(p, at::zeros({layout->buckets()[layout->bucket_of(p)].part})));
    }
    const auto work = [] { return ShardCollectives::Work(); };
    collectives = {.ranks = 2,
                   .reduce_scatter =
                       [this, work](const at::Tensor& buffer) {
                         log += " reduce" + std::to_string(buffer.numel());
                         const at::NoGradGuard no_grad;
                         at::Tensor(buffer).add_(1);
                         return work();
                       },
                   .all_gather =
                       [this, work](const at::Tensor& buffer) {
                         log += " gather" + std::to_string(buffer.numel());
                         return work();
                       },
                   .wait = [this](const auto&, const std::string& what) { log += " wait " + what; },
                   .all_reduce = [this](const at::Tensor&) { log += " order"; }};
    reduction.emplace(*layout, parameters, parts, DeviceReplicatorOptions{.sharding = sharding}, collectives);
  }

  /// Backward of 2 * parameter for each; only of the first one unless `both`.
  void backward(bool both = true) {
    (2 * parameters[0].sum() + (both ? 2 * parameters[1].sum() : at::zeros({}))).backward();
  }

  std::string log;
  std::vector<at::Tensor> parameters, parts;
  std::optional<ShardLayout> layout;
  ShardCollectives collectives;
  std::optional<ShardReduction> reduction;
};

}  // namespace

TEST_CASE("Each bucket is sent once, and the parts get the sums", "[distributed][shard_reduction]") {
  const auto sharding = GENERATE(Sharding::kOptimizer, Sharding::kGradients);
  HalfOfTwo rank(sharding);
  bool sent = false;
  rank.reduction->begin(/*reduces=*/true, [&] { sent = true; });
  CHECK(rank.reduction->is_reducing());
  rank.backward();
  CHECK_FALSE(sent);  // the ranks do not know the order yet
  rank.reduction->end(/*contribute=*/true);
  CHECK_THAT(rank.log, Catch::EndsWith(" order"));
  CHECK(rank.log.find("reduce32") < rank.log.find("reduce64"));  // the last layers first
  for (const at::Tensor& part : rank.parts) CHECK(torch::equal(part.grad(), at::full_like(part, 3)));
  CHECK_FALSE(rank.reduction->without_gradient().has_value());
  rank.reduction->release();
  for (const at::Tensor& part : rank.parts) CHECK_FALSE(part.grad().defined());
}

TEST_CASE("Micro-batches are summed: at the end of a step, or after each reduction", "[distributed][shard_reduction]") {
  const auto sharding = GENERATE(Sharding::kOptimizer, Sharding::kGradients);
  HalfOfTwo rank(sharding);
  for (const bool is_last : {false, true}) {
    rank.reduction->begin(is_last || rank.reduction->reduces_every_run());
    rank.backward();
    rank.reduction->end(/*contribute=*/true);
  }
  const double sum = sharding == Sharding::kOptimizer ? 2 + 2 + 1 : (2 + 1) + (2 + 1);
  for (const at::Tensor& part : rank.parts) CHECK(torch::equal(part.grad(), at::full_like(part, sum)));
}

TEST_CASE("A missing gradient is sent as zeros and reported", "[distributed][shard_reduction]") {
  HalfOfTwo rank(Sharding::kOptimizer);
  rank.reduction->begin(true);
  rank.backward(/*both=*/false);
  rank.reduction->end(/*contribute=*/true);
  CHECK(rank.reduction->without_gradient() == size_t{1});
  CHECK(torch::equal(rank.parts[1].grad(), at::ones_like(rank.parts[1])));
  rank.reduction->release();
  rank.reduction->begin(true);
  rank.reduction->end(/*contribute=*/false);  // a rank without rows, or one that failed
  CHECK(torch::equal(rank.parts[0].grad(), at::ones_like(rank.parts[0])));
}

TEST_CASE("Weights of a bucket are sent once per update, and the rest at its end", "[distributed][weight_gathering]") {
  HalfOfTwo rank(Sharding::kOptimizer);
  WeightGathering gathering(rank.collectives);
  gathering.add(at::zeros({8}));
  gathering.add(at::zeros({4}));
  gathering.start(1);
  gathering.start(1);
  CHECK(rank.log == " gather4");
  gathering.run();
  CHECK(rank.log == " gather4 gather8 wait allgather(weights 0) wait allgather(weights 1)");
  rank.log.clear();
  gathering.start(0);
  gathering.begin();  // the update failed
  gathering.start(0);
  CHECK(rank.log == " gather8 gather8");
}
