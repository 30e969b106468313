#pragma once
/// The task of train_rank, so that a test can run it in one process.

#include <torch/torch.h>
#include <unistd.h>

#include <csignal>
#include <memory>

#include "trainkit/data/batch.h"
#include "trainkit/optim/sgd.h"
#include "trainkit/train/train_step.h"

namespace trainkit::test {

constexpr int64_t kRankSteps = 6;
constexpr int64_t kRankRows = 16;

struct RankNetImpl : torch::nn::Module {
  explicit RankNetImpl(int64_t width = 16)
      : hidden(register_module("hidden", torch::nn::Linear(8, width))),
        out(register_module("out", torch::nn::Linear(width, 4))) {}
  at::Tensor forward(const at::Tensor& x) { return out(torch::relu(hidden(x))); }
  torch::nn::Linear hidden, out;
};
TORCH_MODULE(RankNet);

/// Part `part` of `parts` of the rows of `step`; some labels are ignored, so that the parts have different weights.
inline Batch rank_batch(int64_t step, int64_t part, int64_t parts) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(step));
  const at::Tensor x = at::randn({kRankRows, 8}, generator);
  at::Tensor y = at::randint(4, {kRankRows}, generator, at::kLong);
  y[0] = -100;
  if (step % 2 == 1) y[5] = -100;
  const auto fields = std::make_shared<const std::vector<FieldSpec>>(
      std::vector<FieldSpec>{{"x", at::kFloat, {8}}, {"y", at::kLong, {}}});
  return Batch(fields, {x, y}).slice(kRankRows * part / parts, kRankRows * (part + 1) / parts);
}

inline LossOutput rank_loss(torch::nn::Module& module, const Batch& batch) {
  const at::Tensor logits = module.as<RankNetImpl>()->forward(batch["x"]);
  const double counted = batch["y"].ge(0).sum().item<double>();
  return {at::cross_entropy_loss(logits, batch["y"]), counted};
}

}  // namespace trainkit::test
