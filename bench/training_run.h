#pragma once
/// Repeats whole training steps on a few made-up batches, on the CPU or on a GPU.

#include <torch/torch.h>

#include <memory>
#include <utility>
#include <vector>

#include "trainkit/nn/transformer.h"
#include "trainkit/optim/adam.h"
#include "trainkit/train/train_step.h"

namespace trainkit::bench {

/// Model, optimizer and batches of a benchmark. For a GPU the batches are in page-locked memory, and each step copies
/// one to the device.
class TrainingRun {
 public:
  /// `factory` makes the model, as for DeviceReplicator::create.
  template <class Factory>
  TrainingRun(Factory factory, std::unique_ptr<Optimizer> optimizer, LossFunction loss, std::vector<Batch> batches,
              const TrainStepOptions& options, at::Device device)
      : device_(device),
        devices_(DeviceReplicator::create(std::move(factory), {.device = device}).value()),
        optimizer_(std::move(optimizer)),
        loss_(std::move(loss)),
        batches_(std::move(batches)),
        train_step_(*devices_, *optimizer_, options) {
    if (device.is_cpu()) return;
    for (Batch& batch : batches_) {
      std::vector<at::Tensor> pinned;
      for (const at::Tensor& tensor : batch.tensors()) pinned.push_back(tensor.pin_memory());
      batch = batch.with_tensors(std::move(pinned));
    }
  }

  void step() {
    const Batch& batch = batches_[next_++ % batches_.size()];
    device_.is_cpu() ? train_step_(batch, loss_) : train_step_(batch.to(device_, /*non_blocking=*/true), loss_);
  }

  const TrainStep& train_step() const { return train_step_; }

 private:
  at::Device device_;
  std::unique_ptr<DeviceReplicator> devices_;
  std::unique_ptr<Optimizer> optimizer_;
  LossFunction loss_;
  std::vector<Batch> batches_;
  size_t next_ = 0;
  TrainStep train_step_;
};

/// Makes `count` batches of `fields`; `make` returns the tensors of one batch.
template <class Make>
std::vector<Batch> made_up_batches(int count, const std::vector<FieldSpec>& fields, Make make) {
  const auto shared = std::make_shared<const std::vector<FieldSpec>>(fields);
  std::vector<Batch> batches;
  for (int k = 0; k < count; ++k) batches.emplace_back(shared, make());
  return batches;
}

struct LanguageModelTask {
  int64_t rows;
  TransformerConfig model;
  int64_t tokens() const { return rows * model.block_size; }
};

/// nanoGPT's model for a CPU (train_shakespeare_char).
inline LanguageModelTask nano_gpt_for_cpu() {
  return {.rows = 12, .model = {.vocab_size = 65, .block_size = 64, .n_layers = 4, .n_heads = 4, .hidden_dim = 128}};
}

/// AdamW with nanoGPT's settings, clipping to 1. Seeds LibTorch's generator.
inline TrainingRun language_model_run(const LanguageModelTask& task, TrainStepOptions options, at::Device device) {
  torch::manual_seed(0);
  options.grad_clip = 1;
  const TransformerConfig config = task.model;
  const auto ids = [&] { return torch::randint(config.vocab_size, {task.rows, config.block_size}, at::kLong); };
  return TrainingRun([config] { return Transformer(config); },
                     std::make_unique<AdamW>(AdamWOptions{.lr = 1e-3, .betas = {0.9, 0.99}, .weight_decay = 0.1}),
                     [](Transformer& model, const Batch& batch) { return model->loss(batch["x"], batch["y"]); },
                     made_up_batches(8, {{"x", at::kLong, {config.block_size}}, {"y", at::kLong, {config.block_size}}},
                                     [&] {
                                       return std::vector<at::Tensor>{ids(), ids()};
                                     }),
                     options, device);
}

}  // namespace trainkit::bench
