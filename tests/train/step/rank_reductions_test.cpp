// Reductions of ranks in uncommon orders: incomplete windows, unused parameters, retries, several replicators.
#include <fmt/format.h>

#include "distributed/rank_threads.h"
#include "test_util.h"
#include "train/sharded_net.h"
#include "trainkit/core/status.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/optim/adam.h"
#include "trainkit/optim/sgd.h"
#include "trainkit/train/train_step.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

std::shared_ptr<ProcessGroup> unowned(ProcessGroup& ranks) {
  return {&ranks, [](ProcessGroup*) {}};
}

/// Two layers, of which a loss may use only the first.
struct BranchNetImpl : torch::nn::Module {
  BranchNetImpl() {
    first = register_module("first", torch::nn::Linear(5, 4));
    extra = register_module("extra", torch::nn::Linear(4, 4));
    double shift = 0;
    for (const at::Tensor& parameter : parameters()) {
      const at::NoGradGuard no_grad;
      parameter.copy_(at::arange(parameter.numel(), at::kFloat).add(++shift).sin().view(parameter.sizes()));
    }
  }
  at::Tensor loss(const at::Tensor& x, bool uses_extra) {
    const at::Tensor h = torch::tanh(first(x));
    return (uses_extra ? extra(h) : h).square().mean();
  }
  torch::nn::Linear first{nullptr}, extra{nullptr};
};
TORCH_MODULE(BranchNet);

/// What the ranks do in each micro-batch of each step: whether the loss of a rank uses the extra layer.
using Window = std::vector<std::vector<bool>>;  // [micro-batch][rank]

at::Tensor rows_of(size_t step, size_t micro_batch, size_t rank) {
  return at::arange(15, at::kFloat).add(static_cast<double>(step * 31 + micro_batch * 7 + rank * 3)).cos().view({3, 5});
}

Batch batch_of(const at::Tensor& x) {
  const std::vector<FieldSpec> fields{{.name = "x", .dtype = at::kFloat, .shape = {5}}};
  return Batch(std::make_shared<const std::vector<FieldSpec>>(fields), {x});
}

const SGDOptions kSgd{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1};  // moves each parameter with a gradient

std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& parameter : parameters) copies.push_back(parameter.detach().clone());
  return copies;
}

std::vector<at::Tensor> train_plainly(const std::vector<Window>& steps, int64_t ranks) {
  BranchNet net;
  SGD optimizer(kSgd);
  optimizer.add_param_groups(default_param_groups(*net));
  for (size_t s = 0; s < steps.size(); ++s) {
    const double parts = static_cast<double>(steps[s].size()) * static_cast<double>(ranks);
    for (size_t m = 0; m < steps[s].size(); ++m) {
      for (size_t r = 0; r < static_cast<size_t>(ranks); ++r) {
        (net->loss(rows_of(s, m, r), steps[s][m][r]) / parts).backward();
      }
    }
    optimizer.step();
    optimizer.zero_grad();
  }
  return copies_of(net->parameters());
}

absl::Status train_rank(ProcessGroup& ranks, const std::vector<Window>& steps, int64_t accumulated, bool set_to_none,
                        std::vector<at::Tensor>& weights) try {
  const auto rank = static_cast<size_t>(ranks.rank());
  const auto devices =
      DeviceReplicator::create([] { return BranchNet(); },
                               {.device = at::kCPU, .process_group = unowned(ranks), .find_unused_parameters = true})
          .value();
  SGD optimizer(kSgd);
  TrainStep step(*devices, optimizer, {.grad_accum_steps = accumulated, .zero_grad_set_to_none = set_to_none});
  for (size_t s = 0; s < steps.size(); ++s) {
    for (size_t m = 0; m < steps[s].size(); ++m) {
      const bool uses_extra = steps[s][m][rank];
      const LossFunction loss = [uses_extra](BranchNetImpl& net, const Batch& batch) {
        return net.loss(batch["x"], uses_extra);
      };
      step.accumulate(batch_of(rows_of(s, m, rank)), loss);
    }
    step.finish();
  }
  weights = copies_of(devices->module()->parameters());
  return absl::OkStatus();
} catch (...) {
  return status_from_current_exception();
}

}  // namespace

TEST_CASE("With unused parameters, accumulation and incomplete windows ranks train as one process",
          "[train][train_step][ranks]") {
  const Window both = {{true, true}, {true, true}}, none = {{false, false}, {false, false}};
  const std::vector<Window> steps = {both,
                                     {{true, false}},
                                     none,
                                     {{false, true}, {false, false}},
                                     {{false, false}},
                                     none,
                                     {{true, true}},
                                     none,
                                     {{true, false}, {false, true}},
                                     {{false, true}},
                                     {{false, false}}};
  const std::vector<at::Tensor> one = train_plainly(steps, 2);
  const bool shared_memory = GENERATE(true, false);
  std::vector<std::vector<at::Tensor>> weights(2);
  const auto texts = on_ranks(2,
                              [&](ProcessGroup& ranks) {
                                return train_rank(ranks, steps, 2, true, weights[static_cast<size_t>(ranks.rank())]);
                              },
                              {.timeout = std::chrono::seconds(20), .shared_memory = shared_memory});
  for (size_t rank = 0; rank < 2; ++rank) {
    REQUIRE(texts[rank] == "ok");
    for (size_t i = 0; i < one.size(); ++i) {
      INFO("rank " << rank << ", parameter " << i << "\n" << weights[rank][i] << "\n" << one[i]);
      CHECK(weights[rank][i].allclose(one[i], 1e-5, 1e-6));
    }
  }
}

TEST_CASE("Requests to stop and to save in a step that is retried are agreed on after it",
          "[train][train_step][ranks]") {
  std::vector<std::string> agreed(2);
  const auto texts = on_ranks(2, [&](ProcessGroup& ranks) -> absl::Status {
    try {
      const auto rank = static_cast<size_t>(ranks.rank());
      const auto devices =
          DeviceReplicator::create([] { return BranchNet(); }, {.device = at::kCPU, .process_group = unowned(ranks)})
              .value();
      SGD optimizer(kSgd);
      TrainStep step(*devices, optimizer, {});
      if (rank == 1) {
        step.request_stop(15);
        step.request_save();
      }
      bool fails = rank == 0;
      const LossFunction loss = [&](BranchNetImpl& net, const Batch& batch) {
        if (std::exchange(fails, false)) C10_THROW_ERROR(OutOfMemoryError, "no memory");
        return net.loss(batch["x"], true);
      };
      step(batch_of(rows_of(0, 0, rank)), loss);
      agreed[rank] = fmt::format("split {}, stop {}, save {}", step.split(), step.agreed_stop(), step.agreed_save());
      return absl::OkStatus();
    } catch (...) {
      return status_from_current_exception();
    }
  });
  CHECK(texts == std::vector<std::string>(2, "ok"));
  CHECK(agreed == std::vector<std::string>(2, "split 2, stop 15, save true"));
}

TEST_CASE("Several sharded replicators over one process group train side by side", "[train][sharding]") {
  const auto texts = on_ranks(2, [](ProcessGroup& ranks) -> absl::Status {
    try {
      std::vector<std::unique_ptr<DeviceReplicator>> models;
      std::vector<std::unique_ptr<AdamW>> optimizers;
      std::vector<std::unique_ptr<TrainStep>> steps;
      for (int i = 0; i < 4; ++i) {
        models.push_back(DeviceReplicator::create(
                             [] { return BranchNet(); },
                             {.device = at::kCPU, .process_group = unowned(ranks), .sharding = Sharding::kOptimizer})
                             .value());
        optimizers.push_back(std::make_unique<AdamW>(AdamWOptions{.lr = 0.01}));
        steps.push_back(std::make_unique<TrainStep>(*models.back(), *optimizers.back(), TrainStepOptions{}));
      }
      const LossFunction loss = [](BranchNetImpl& net, const Batch& batch) { return net.loss(batch["x"], true); };
      for (size_t s = 0; s < 3; ++s) {
        for (const auto& step : steps) (*step)(batch_of(rows_of(s, 0, static_cast<size_t>(ranks.rank()))), loss);
      }
      for (size_t i = 0; i < models.front()->module()->parameters().size(); ++i) {
        for (const auto& model : models) {
          if (!model->module()->parameters()[i].equal(models.front()->module()->parameters()[i])) {
            return absl::InternalError("the replicators differ");
          }
        }
      }
      return absl::OkStatus();
    } catch (...) {
      return status_from_current_exception();
    }
  });
  for (const std::string& text : texts) CHECK(text == "ok");
}

TEST_CASE("Weights of any size give the mean by weight, and one that float32 cannot hold is refused in one line",
          "[train][train_step]") {
  const auto loss_of_step = [](std::vector<double> weights) {
    const auto devices = DeviceReplicator::create([] { return BranchNet(); }).value();
    SGD optimizer(kSgd);
    TrainStep step(*devices, optimizer, {.grad_accum_steps = static_cast<int64_t>(weights.size())});
    size_t next = 0;
    const LossFunction loss = [&](BranchNetImpl& net, const Batch& batch) {
      const double weight = weights[next++];
      return LossOutput(net.loss(batch["x"], true) * 0 + static_cast<double>(next), weight);
    };
    for (size_t m = 0; m < weights.size(); ++m) step.accumulate(batch_of(rows_of(0, m, 0)), loss);
    return step.finish().loss.item<double>();
  };
  CHECK(loss_of_step({1e-45, 1e-45}) == Approx(1.5));
  CHECK(loss_of_step({3e-45, 1e-45}) == Approx(1.25));
  CHECK(loss_of_step({1, 1e-45}) == Approx(1));
  CHECK(loss_of_step({1e-20, 1}) == Approx(2));
  CHECK(loss_of_step({0, 1e-45}) == Approx(2));
  CHECK_THROWS_WITH(loss_of_step({1e-45, 1}), Catch::Contains("LossOutput::weight is more than 1e+30 times"));
}
