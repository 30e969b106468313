// The cost of an optimizer step compared with the bare kernel and LibTorch's own optimizer, of clipping compared with
// LibTorch's, and of a GradScaler compared with a step without one. Each benchmark alternates its candidates, so that
// other load on the machine affects all of them, and reports medians in microseconds. One intra-op thread.
#include <benchmark/benchmark.h>
#include <torch/torch.h>

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "trainkit/amp/grad_scaler.h"
#include "trainkit/optim/adam.h"
#include "trainkit/optim/lr_scheduler.h"
#include "trainkit/optim/optimizer.h"

namespace trainkit {
namespace {

/// Parameters of one of two models, with gradients.
std::vector<at::Tensor> parameters(bool small) {
  at::set_num_threads(1);
  torch::manual_seed(0);
  using Shapes = std::vector<std::vector<int64_t>>;
  const Shapes mlp = {{128, 64}, {128}, {10, 128}, {10}};
  const Shapes bpr = {{6040, 64}, {3706, 64}};
  std::vector<at::Tensor> params;
  for (const auto& shape : small ? mlp : bpr) {
    params.push_back(torch::randn(shape).requires_grad_());
    params.back().mutable_grad() = torch::randn(shape) * 1e-3;
  }
  return params;
}

ParamGroup group(const std::vector<at::Tensor>& params) {
  ParamGroup group;
  for (size_t i = 0; i < params.size(); ++i) group.params.push_back({c10::str("p", i), params[i]});
  return group;
}

/// Hand-written use of at::_fused_adam_, with a step count per parameter.
struct RawAdam {
  explicit RawAdam(std::vector<at::Tensor> parameters) : params(std::move(parameters)) {
    for (const at::Tensor& param : params) {
      exp_avgs.push_back(torch::zeros_like(param));
      exp_avg_sqs.push_back(torch::zeros_like(param));
      steps.push_back(torch::zeros({}));
    }
  }
  void step() {
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> grads;
    for (size_t i = 0; i < params.size(); ++i) {
      grads.push_back(params[i].grad());
      steps[i].add_(1);
    }
    at::_fused_adam_(params, grads, exp_avgs, exp_avg_sqs, {}, steps, 1e-3, 0.9, 0.999, 0.0, 1e-8, false, false);
  }
  std::vector<at::Tensor> params, exp_avgs, exp_avg_sqs, steps;
};

struct Candidate {
  std::string name;
  std::function<void()> work;
};

/// Runs all candidates in each iteration, `calls` times each, and reports the median of each and its ratio to the
/// first.
void in_turns(benchmark::State& state, int calls, const std::vector<Candidate>& candidates) {
  std::vector<std::vector<double>> times(candidates.size());
  for (auto _ : state) {
    double total = 0;
    for (size_t i = 0; i < candidates.size(); ++i) {
      const auto start = std::chrono::steady_clock::now();
      for (int call = 0; call < calls; ++call) candidates[i].work();
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      times[i].push_back(seconds / calls * 1e6);
      total += seconds;
    }
    state.SetIterationTime(total);
  }
  double first = 0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    auto middle = times[i].begin() + static_cast<std::ptrdiff_t>(times[i].size() / 2);
    std::nth_element(times[i].begin(), middle, times[i].end());
    state.counters[candidates[i].name + "_us"] = *middle;
    if (i == 0) first = *middle;
    if (i > 0) state.counters[candidates[i].name + "_over_ours"] = *middle / first;
  }
}

/// One Adam step: small:1 is the MLP 64-128-10 (9,610 parameters), small:0 matrix factorisation (623,744).
void BM_AdamStep(benchmark::State& state) {
  const bool small = state.range(0) != 0;
  Adam ours({.lr = 1e-3});
  ours.add_param_group(group(parameters(small)));
  RawAdam raw(parameters(small));
  torch::optim::Adam libtorch(parameters(small), torch::optim::AdamOptions(1e-3));
  in_turns(state, small ? 200 : 5,
           {{"ours", [&] { ours.step(); }}, {"raw", [&] { raw.step(); }}, {"libtorch", [&] { libtorch.step(); }}});
}
BENCHMARK(BM_AdamStep)->ArgName("small")->Arg(1)->Arg(0)->UseManualTime()->Unit(benchmark::kMillisecond);

/// clip_grad_norm_ on the same parameters; LibTorch's reads the norm from the device.
void BM_ClipGradNorm(benchmark::State& state) {
  const bool small = state.range(0) != 0;
  const std::vector<at::Tensor> params = parameters(small);
  Adam optimizer;
  optimizer.add_param_group(group(params));
  in_turns(state, small ? 200 : 5,
           {{"ours", [&] { benchmark::DoNotOptimize(clip_grad_norm_(optimizer, 1.0)); }},
            {"libtorch", [&] { benchmark::DoNotOptimize(torch::nn::utils::clip_grad_norm_(params, 1.0)); }}});
}
BENCHMARK(BM_ClipGradNorm)->ArgName("small")->Arg(1)->Arg(0)->UseManualTime()->Unit(benchmark::kMillisecond);

/// scale, step and update around the step of the small model, and a schedule's step.
void BM_GradScaler(benchmark::State& state) {
  Adam plain, scaled, passed;
  const std::vector<at::Tensor> params = parameters(true);
  plain.add_param_group(group(parameters(true)));
  scaled.add_param_group(group(params));
  passed.add_param_group(group(parameters(true)));
  GradScaler scaler({.init_scale = 1.0, .max_scale = 1.0});  // the gradients do not change between calls
  GradScaler disabled({.enabled = false});
  LRScheduler scheduler(plain,
                        create_schedule({.name = "cosine", .total_steps = 1'000'000, .warmup_steps = 100}).value());
  const at::Tensor loss = torch::ones({});
  const auto iterate = [&](GradScaler& with, Optimizer& optimizer) {
    benchmark::DoNotOptimize(with.scale(loss));
    with.step(optimizer);
    with.update();
  };
  in_turns(state, 200,
           {{"step", [&] { plain.step(); }},
            {"scaler", [&] { iterate(scaler, scaled); }},
            {"disabled_scaler", [&] { iterate(disabled, passed); }},
            {"schedule", [&] { scheduler.step(); }}});
}
BENCHMARK(BM_GradScaler)->UseManualTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace trainkit
