// Fine-tunes a classifier on two replicas, or on the ranks of a launcher: the encoder is frozen for an epoch and then
// trained at a tenth of the head's rate, and F1 decides which weights are kept. With a folder it can be killed and
// resumed, also across the thaw.
//   example_fine_tune [folder]
//   trainkit launch --nproc_per_node 2 -- ./example_fine_tune [folder]
#include <torch/torch.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include "trainkit/train/metrics.h"
#include "trainkit/trainkit.h"

using namespace trainkit;

struct NetImpl : torch::nn::Module {
  torch::nn::Sequential encoder =
      register_module("encoder", torch::nn::Sequential(torch::nn::Linear(20, 64), torch::nn::ReLU(),
                                                       torch::nn::Linear(64, 32), torch::nn::ReLU()));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(32, 3));
  at::Tensor forward(const at::Tensor& x) { return head(encoder->forward(x)); }
};
TORCH_MODULE(Net);

/// Batches of 50 rows on all ranks together.
std::unique_ptr<Prefetcher> loader_of(const at::Tensor& x, const at::Tensor& y,
                                      const DistributedSamplerOptions& ranks) {
  auto rows = std::make_shared<TensorDataset>(NamedTensors{{"x", x}, {"y", y}});
  const DistributedSampler order(RandomSampler(rows->size(), {.seed = 3}), ranks);
  return Prefetcher::create(rows, order, {.batch_size = 50 / ranks.world_size}).value();
}

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : "";
  DeviceReplicatorOptions placement{.device = at::kCPU, .cpu_replicas = 2};
  DistributedSamplerOptions ranks;
  if (const auto launch = read_launch_environment().value()) {
    placement = {.device = at::kCPU, .process_group = ProcessGroup::create(*launch).value()};
    ranks = {.rank = placement.process_group->rank(), .world_size = placement.process_group->world_size()};
  }
  torch::manual_seed(5);
  const at::Tensor x = torch::randn({2500, 20});
  const at::Tensor y = x.mm(torch::randn({20, 3})).square().argmax(1);  // not linear: the encoder has to learn
  const auto loader = loader_of(x.slice(0, 0, 2000), y.slice(0, 0, 2000), ranks);
  const auto validation = loader_of(x.slice(0, 2000), y.slice(0, 2000), ranks);
  auto devices = DeviceReplicator::create([] { return Net(); }, placement).value();

  ParamGroup encoder{.params = {}, .lr_multiple = 0.1, .name = "encoder"}, head{.params = {}, .name = "head"};
  encoder.trainable_from = loader->batches_per_epoch();
  for (const NamedParameter& parameter : trainable_parameters(*devices->module())) {
    (parameter.name.starts_with("encoder.") ? encoder : head).params.push_back(parameter);
  }
  AdamW optimizer({.lr = 1e-2});
  optimizer.add_param_groups({encoder, head});

  TrainerOptions options{.max_epochs = 12, .eval_every = loader->batches_per_epoch(), .output_dir = folder};
  options.monitor = "f1";
  options.monitor_higher_is_better = true;
  if (!folder.empty()) options.save_every = 20;
  if (std::filesystem::exists(folder + "/checkpoints/latest")) options.resume = "latest";
  auto trainer = Trainer::create(*devices, std::move(optimizer), options).value();

  const MetricCollection scores(ClassificationMetrics({.classes = 3}));
  FitOptions fit{.validation = validation.get()};
  fit.keep_best = !folder.empty();
  fit.validation_loss = [scores](Net& net, const Batch& batch) {
    const at::Tensor logits = net->forward(batch["x"]);
    scores.update(logits, batch);
    return cross_entropy(logits, batch["y"]);
  };
  fit.on_evaluation = [&](int64_t step, Metrics& metrics) {
    const absl::Status added = scores.add_scores(devices->process_group(), metrics);
    if (!added.ok()) throw absl::BadStatusOrAccess(added);
    if (ranks.rank > 0) return;
    std::printf("step %3ld  loss %.3f  F1 %.3f\n", static_cast<long>(step), metrics.at("loss"), metrics.at("f1"));
  };
  const auto loss = [](Net& net, const Batch& batch) { return cross_entropy(net->forward(batch["x"]), batch["y"]); };
  const TrainerResult result = trainer.fit(*loader, loss, fit).value();
  std::printf("%ld steps, %ld of them in this start; best F1 %.3f after step %ld\n", static_cast<long>(result.steps),
              static_cast<long>(result.steps_run), result.best_evaluation.at("f1"),
              static_cast<long>(result.best_step));
  return result.best_evaluation.at("f1") > 0.75 ? 0 : 1;
}
