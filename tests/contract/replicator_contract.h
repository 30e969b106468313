#pragma once
/// The common task for comparing replicators: models, batches and a few steps, whose results are a list of tensors.

#include <torch/torch.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trainkit/distributed/device_replicator.h"
#include "trainkit/nn/resnet18.h"
#include "trainkit/nn/transformer.h"

namespace trainkit::test {

/// A model of the contract, and its loss for rows [begin, end) of a batch: the mean over these rows.
struct ContractCase {
  std::function<std::shared_ptr<torch::nn::Module>()> make;
  std::function<at::Tensor(torch::nn::Module& module, const at::Tensor& x, const at::Tensor& y)> loss;
  /// All rows of step `step`.
  std::function<std::pair<at::Tensor, at::Tensor>(int64_t step)> rows;
  bool find_unused_parameters = false;
};

inline at::Tensor seeded_randn(at::IntArrayRef shape, int64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(seed));
  return at::randn(shape, generator);
}

inline at::Tensor seeded_labels(int64_t rows, int64_t classes, int64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(seed));
  return at::randint(classes, {rows}, generator, at::kLong);
}

constexpr int64_t kRows = 8;

/// 12 inputs, two hidden layers, 4 classes; the layers between depend on the case.
struct ContractNetImpl : torch::nn::Module {
  enum class Kind { kPlain, kTied, kUnused, kSometimesUnused, kFrozen, kMixed };
  explicit ContractNetImpl(Kind kind_, double dropout_ = 0) : kind(kind_), dropout(dropout_) {
    first = register_module("first", torch::nn::Linear(12, 16));
    second = register_module("second", torch::nn::Linear(16, 16));
    out = register_module("out", torch::nn::Linear(16, 4));
    if (kind == Kind::kUnused || kind == Kind::kSometimesUnused) {
      extra = register_module("extra", torch::nn::Linear(16, 16));
    }
    if (kind == Kind::kTied) tied = register_parameter("tied", second->weight);
    if (kind == Kind::kFrozen) first->weight.set_requires_grad(false);
    if (kind == Kind::kMixed) second->to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor h = torch::relu(first(x));
    const auto type = h.scalar_type();
    h = torch::relu(second(h.to(second->weight.scalar_type()))).to(type);
    if (kind == Kind::kTied) h = at::linear(h, tied);
    // Depends on the rows, so that one replica may use the layer in a step and another may not.
    if (kind == Kind::kSometimesUnused && x.sum().item<double>() > 0) h = h + extra(h);
    return out(at::dropout(h, dropout, is_training()));
  }
  Kind kind;
  double dropout;
  torch::nn::Linear first{nullptr}, second{nullptr}, extra{nullptr}, out{nullptr};
  at::Tensor tied;
};
TORCH_MODULE(ContractNet);

inline ContractCase net_case(ContractNetImpl::Kind kind, at::ScalarType type = at::kFloat, double dropout = 0) {
  const bool mixed = kind == ContractNetImpl::Kind::kMixed;
  return {
      .make =
          [=] {
            auto net = std::make_shared<ContractNetImpl>(kind, dropout);
            if (!mixed) net->to(type);
            return net;
          },
      .loss = [](torch::nn::Module& module, const at::Tensor& x,
                 const at::Tensor& y) { return at::cross_entropy_loss(module.as<ContractNetImpl>()->forward(x), y); },
      .rows =
          [=](int64_t step) {
            return std::pair(seeded_randn({kRows, 12}, 100 + step).to(type), seeded_labels(kRows, 4, 200 + step));
          },
      .find_unused_parameters =
          kind == ContractNetImpl::Kind::kUnused || kind == ContractNetImpl::Kind::kSometimesUnused};
}

inline ContractCase transformer_case(at::ScalarType type) {
  return {.make =
              [=] {
                auto model = std::make_shared<TransformerImpl>(TransformerConfig{
                    .vocab_size = 11, .block_size = 8, .n_layers = 2, .n_heads = 2, .hidden_dim = 16});
                model->to(type);
                return model;
              },
          .loss = [](torch::nn::Module& module, const at::Tensor& x,
                     const at::Tensor& y) { return language_model_loss(module.as<TransformerImpl>()->forward(x), y); },
          .rows =
              [](int64_t step) {
                const at::Tensor ids = seeded_labels(kRows * 9, 11, 300 + step).view({kRows, 9});
                return std::pair(ids.slice(1, 0, 8), ids.slice(1, 1, 9));
              }};
}

/// `training`: with synchronised statistics; otherwise BatchNorm is in evaluation mode.
inline ContractCase resnet_case(at::ScalarType type, bool training) {
  return {.make =
              [=] {
                auto model =
                    std::make_shared<ResNet18Impl>(ResNet18Options{.num_classes = 5, .sync_batch_norm = training});
                model->train(training);
                model->to(type);
                return model;
              },
          .loss = [](torch::nn::Module& module, const at::Tensor& x,
                     const at::Tensor& y) { return at::cross_entropy_loss(module.as<ResNet18Impl>()->forward(x), y); },
          .rows =
              [=](int64_t step) {
                return std::pair(seeded_randn({kRows, 3, 32, 32}, 400 + step).to(type),
                                 seeded_labels(kRows, 5, 500 + step));
              }};
}

/// The cases by name.
inline ContractCase contract_case(const std::string& name) {
  using Kind = ContractNetImpl::Kind;
  static const std::map<std::string, std::function<ContractCase()>> cases{
      {"mlp", [] { return net_case(Kind::kPlain); }},
      {"mlp_double", [] { return net_case(Kind::kPlain, at::kDouble); }},
      {"mlp_dropout", [] { return net_case(Kind::kPlain, at::kFloat, 0.5); }},
      {"tied", [] { return net_case(Kind::kTied); }},
      {"unused", [] { return net_case(Kind::kUnused); }},
      {"sometimes_unused", [] { return net_case(Kind::kSometimesUnused); }},
      {"frozen", [] { return net_case(Kind::kFrozen); }},
      {"mixed", [] { return net_case(Kind::kMixed); }},
      {"transformer", [] { return transformer_case(at::kFloat); }},
      {"transformer_double", [] { return transformer_case(at::kDouble); }},
      {"resnet_eval", [] { return resnet_case(at::kFloat, false); }},
      {"resnet_eval_double", [] { return resnet_case(at::kDouble, false); }},
      {"resnet_sync", [] { return resnet_case(at::kFloat, true); }},
      {"resnet_sync_double", [] { return resnet_case(at::kDouble, true); }}};
  return cases.at(name)();
}

/// Batch normalisation over few rows amplifies differences in the last bits from step to step: only its first step is
/// compared.
inline int64_t contract_steps(const std::string& name) { return name == "resnet_sync" ? 1 : 3; }

/// Results of the steps. Names are "<step>.grad.<parameter>", "weight.<parameter>", "buffer.<buffer>".
using Trace = std::map<std::string, at::Tensor>;

/// Adds the gradients of one replica and, after all steps, its weights and buffers.
inline void add_gradients(Trace& trace, const torch::nn::Module& module, int64_t step) {
  for (const auto& parameter : module.named_parameters()) {
    const at::Tensor& gradient = parameter.value().grad();
    if (gradient.defined()) trace[std::to_string(step) + ".grad." + parameter.key()] = gradient.clone();
  }
}

inline void add_weights(Trace& trace, const torch::nn::Module& module) {
  for (const auto& item : module.named_parameters()) trace["weight." + item.key()] = item.value().detach().clone();
  for (const auto& item : module.named_buffers()) trace["buffer." + item.key()] = item.value().detach().clone();
}

/// Plain gradient descent on every copy of the weights.
inline void descend(DeviceReplicator& devices) {
  const c10::AutoGradMode no_grad(false);
  for (int64_t copy = 0; copy < devices.weight_copies(); ++copy) {
    for (at::Tensor& parameter : devices.module(copy)->parameters()) {
      if (parameter.grad().defined()) parameter.sub_(parameter.grad(), 0.1);
    }
    devices.module(copy)->zero_grad(true);
  }
}

/// Runs `steps` steps in which replica i computes shard i of `shards`; a single replica computes all in turn.
/// `micro_batches`: parts per shard; the last one reduces. Returns the trace of replica `of`.
inline Trace contract_trace(DeviceReplicator& devices, const ContractCase& work, int64_t steps, int64_t shards,
                            int64_t micro_batches = 1, int64_t of = 0) {
  Trace trace;
  const int64_t first = devices.process_group() ? devices.process_group()->rank() : 0;
  const int64_t turns = shards / devices.world_replicas();
  for (int64_t step = 0; step < steps; ++step) {
    const auto [x, y] = work.rows(step);
    const int64_t pieces = shards * micro_batches;
    const int64_t size = x.size(0) / pieces;
    for (int64_t turn = 0; turn < turns * micro_batches; ++turn) {
      devices.run(
          [&, &x = x, &y = y](int64_t replica) {
            const int64_t piece = (first + replica) * turns * micro_batches + turn;
            return work.loss(*devices.module(replica), x.narrow(0, piece * size, size),
                             y.narrow(0, piece * size, size)) /
                   static_cast<double>(pieces);
          },
          turn + 1 == turns * micro_batches);
    }
    add_gradients(trace, *devices.module(of), step);
    descend(devices);
  }
  add_weights(trace, *devices.module(of));
  return trace;
}

}  // namespace trainkit::test
