// The loss function of a program.
#include <torch/torch.h>

#include <utility>

#include "model.h"

namespace trainkit::differential {
namespace {

/// Losses (N) of rows.
at::Tensor row_losses(const Spec& spec, const at::Tensor& scores, const at::Tensor& y) {
  if (spec.loss == "cross_entropy") return at::cross_entropy_loss(scores, y, {}, at::Reduction::None);
  if (spec.loss == "huber") return at::huber_loss(scores, y.to(scores.scalar_type()), at::Reduction::None, 0.5).mean(1);
  return (scores - y.to(scores.scalar_type())).square().mean(1);
}

/// Losses (N) of rows of a rollout.
at::Tensor policy_losses(const at::Tensor& scores, const Batch& rows) {
  const auto field = [&](const char* name) { return rows[name].to(scores.scalar_type()); };
  return 0.1 * (scores.select(1, 0) * field("advantage") + (scores.select(1, 1) - field("return")).square());
}

/// Absolute errors (N) of rows; of classes: 1 - the score's probability.
at::Tensor row_errors(const Spec& spec, const at::Tensor& scores, const at::Tensor& y) {
  if (spec.loss != "cross_entropy") return (scores - y).abs().mean(1);
  return 1 - at::softmax(scores, 1).gather(1, y.unsqueeze(1)).squeeze(1);
}

struct ProgramLoss {
  Spec spec;
  std::vector<at::Tensor>* kept;
  OnCall on_call;
  int64_t calls = 0;

  LossOutput operator()(torch::nn::Module& module, const Batch& batch, const Shared& shared) {
    auto& net = *module.as<Net>();
    const bool trains = at::GradMode::is_enabled();
    if (trains && on_call) on_call(module, batch);
    const at::Tensor y = batch["y"], w = batch["w"];
    if (trains && kept) kept->push_back(y);
    at::Tensor x = batch["x"];
    const auto features = shared.find("features");
    const bool uses_shared = trains && !spec.shared.empty();
    const bool has_penalty = spec.penalty && trains && !uses_shared;
    if (has_penalty) x = x.detach().requires_grad_();
    const at::Tensor scores = !uses_shared                ? net.forward(x, batch["m"])
                              : spec.shared == "detached" ? net.head(features->second.detach())
                                                          : net.head(features->second);
    at::Tensor losses = row_losses(spec, scores, y);
    if (trains && batch.contains("advantage")) losses = losses + policy_losses(scores, batch);
    if (has_penalty) {
      const at::Tensor slope =
          torch::autograd::grad({losses.sum()}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
      losses = losses + 0.1 * slope.flatten(1).square().sum(1);
    }
    const bool weighted = !spec.weights.empty();
    const at::Tensor total = w.sum();
    const auto mean = [&](const at::Tensor& values) { return weighted ? (values * w).sum() / total : values.mean(); };
    at::Tensor loss = mean(losses);
    if (spec.state && trains) loss = loss / (1 + 0.25 * static_cast<double>(calls++));
    LossOutput output(loss * spec.factor);
    if (weighted) output.weight = total.item<double>();
    add_metrics(output, net, mean, scores, batch);
    return output;
  }

  template <class Mean>
  void add_metrics(LossOutput& output, Net& net, const Mean& mean, const at::Tensor& scores, const Batch& batch) const {
    if (spec.metric.empty()) return;
    const bool present = spec.metric != "sometimes" || batch["m"][0].item<int64_t>() == 1;
    if (spec.metric == "parameter") {
      output.metrics.emplace_back("metric", net.named_parameters()["head.weight"].view({-1})[0]);
    } else if (present) {
      output.metrics.emplace_back("metric", mean(row_errors(spec, scores.detach(), batch["y"])));
    }
  }
};

}  // namespace

LossFunction make_loss(const Spec& spec, std::vector<at::Tensor>* kept, OnCall on_call) {
  return make_loss_function(ProgramLoss{spec, spec.keeps ? kept : nullptr, std::move(on_call)});
}

SharedFunction make_shared(bool detached) {
  return [detached](torch::nn::Module& module, const Batch& batch) -> Shared {
    const at::Tensor features = module.as<Net>()->features(batch["x"], batch["m"]);
    return {{"features", detached ? features.detach() : features}};
  };
}

}  // namespace trainkit::differential
