#include "trainkit/nn/transformer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <torch/nn/init.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <string>

#include "core/base/option_problems.h"
#include "nn/cpu/fused_block.h"
#include "nn/gpu/fused_gpu_block.h"
#include "nn/gpu/fused_ops.h"
#include "nn/models/dropout.h"
#include "nn/models/packed_documents.h"
#include "trainkit/core/error.h"
#include "trainkit/core/random.h"
#include "trainkit/nn/activation_checkpoint.h"
#include "trainkit/nn/functional.h"

namespace trainkit {

/// LayerNorm over the last dimension with an optional bias; torch::nn::LayerNorm always has one.
class LayerNormImpl : public torch::nn::Module {
 public:
  LayerNormImpl(int64_t dim, bool bias);
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight;
  at::Tensor bias;  // undefined without a bias
};
TORCH_MODULE(LayerNorm);

/// Multi-head causal self-attention, (B, T, C) to (B, T, C).
class CausalSelfAttentionImpl : public torch::nn::Module {
 public:
  explicit CausalSelfAttentionImpl(const TransformerConfig& config);
  /// @param documents may be null.
  at::Tensor forward(const at::Tensor& x, const PackedDocuments* documents);
  /// Processes positions that follow the `cache.length` positions of the cache; appends to its entry `layer`.
  at::Tensor forward(const at::Tensor& x, KeyValueCache& cache, size_t layer);

 private:
  at::Tensor heads(const at::Tensor& x) const;
  at::Tensor mix(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                 const PackedDocuments* documents) const;
  at::Tensor project(const at::Tensor& mixed);

  friend class TransformerBlockImpl;  // for the fused block

  int64_t n_heads_;
  int64_t block_size_;
  double dropout_;
  torch::nn::Linear c_attn_{nullptr};  // queries, keys and values in one product
  torch::nn::Linear c_proj_{nullptr};
};
TORCH_MODULE(CausalSelfAttention);

/// Computes x + attention(norm(x)), then x + mlp(norm(x)). The MLP is four times as wide, with GELU.
class TransformerBlockImpl : public torch::nn::Module {
 public:
  explicit TransformerBlockImpl(const TransformerConfig& config);
  /// @param documents may be null.
  at::Tensor forward(const at::Tensor& x, const PackedDocuments* documents) { return run({x, {}}, documents).added(); }
  at::Tensor forward(const at::Tensor& x, KeyValueCache& cache, size_t layer);
  /// As forward, for the output of another block; the next layer norm adds the parts of the result.
  detail::ResidualStream run(detail::ResidualStream x, const PackedDocuments* documents);
  /// See TransformerImpl::set_fused_blocks.
  void set_fused(bool on) { is_fused_ = on; }

 private:
  std::optional<detail::ResidualStream> fused_run(detail::ResidualStream& x, const PackedDocuments* documents);
  detail::ResidualStream gpu_run(detail::ResidualStream x, const PackedDocuments* documents);
  at::Tensor feed_forward(const at::Tensor& attended);

  int64_t n_heads_;
  double dropout_;
  bool is_fused_ = true;
  LayerNorm ln_1_{nullptr};
  CausalSelfAttention attn_{nullptr};
  LayerNorm ln_2_{nullptr};
  torch::nn::Linear c_fc_{nullptr};
  torch::nn::Linear c_proj_{nullptr};
};
TORCH_MODULE(TransformerBlock);

namespace {

constexpr double kInitStd = 0.02;
constexpr double kLayerNormEps = 1e-5;

torch::nn::Linear linear(int64_t in, int64_t out, bool bias) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(bias));
}

TransformerConfig resolved(TransformerConfig config) {
  if (config.n_heads == 0 && config.hidden_dim >= 1) config.n_heads = default_n_heads(config.hidden_dim);
  const absl::Status status = validate(config);
  TORCH_CHECK_VALUE(status.ok(), status.message());
  return config;
}

}  // namespace

int64_t default_n_heads(int64_t hidden_dim) {
  for (int64_t heads = 8; heads > 1; --heads) {
    if (hidden_dim % heads == 0) return heads;
  }
  return 1;
}

absl::Status validate(const TransformerConfig& config) {
  detail::OptionProblems problems;
  for (const auto& [name, value] :
       {std::pair("vocab_size", config.vocab_size), std::pair("block_size", config.block_size),
        std::pair("n_layers", config.n_layers), std::pair("hidden_dim", config.hidden_dim)}) {
    problems.require(value >= 1, name, ">= 1", value);
  }
  problems
      .require(config.n_heads == 0 || (config.n_heads > 0 && config.hidden_dim % config.n_heads == 0), "n_heads",
               fmt::format("a divisor of hidden_dim {}", config.hidden_dim), config.n_heads)
      .require(config.dropout >= 0.0 && config.dropout < 1.0, "dropout", "in [0, 1)", config.dropout);
  if (problems.empty()) return absl::OkStatus();
  return to_status({.exit_code = ExitCode::kUsage, .id = "cli.value", .problem = problems.text()});
}

LayerNormImpl::LayerNormImpl(int64_t dim, bool with_bias) {
  weight = register_parameter("weight", at::ones({dim}));
  if (with_bias) bias = register_parameter("bias", at::zeros({dim}));
}

at::Tensor LayerNormImpl::forward(const at::Tensor& x) {
  return at::layer_norm(x, weight.sizes(), weight, bias, kLayerNormEps);
}

CausalSelfAttentionImpl::CausalSelfAttentionImpl(const TransformerConfig& config)
    : n_heads_(config.n_heads), block_size_(config.block_size), dropout_(config.dropout) {
  c_attn_ = register_module("c_attn", linear(config.hidden_dim, 3 * config.hidden_dim, config.bias));
  c_proj_ = register_module("c_proj", linear(config.hidden_dim, config.hidden_dim, config.bias));
}

/// (B, T, C) to (B, heads, T, C / heads).
at::Tensor CausalSelfAttentionImpl::heads(const at::Tensor& x) const {
  return x.view({x.size(0), x.size(1), n_heads_, x.size(2) / n_heads_}).transpose(1, 2);
}

at::Tensor CausalSelfAttentionImpl::project(const at::Tensor& mixed) {
  return detail::dropout(c_proj_->forward(mixed.transpose(1, 2).flatten(2)), dropout_, is_training());
}

at::Tensor CausalSelfAttentionImpl::mix(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                        const PackedDocuments* documents) const {
  const auto mask = documents ? std::optional(documents->allowed()) : std::nullopt;
  return at::scaled_dot_product_attention(query, key, value, mask, detail::attention_dropout(dropout_, is_training()),
                                          /*is_causal=*/!documents);
}

at::Tensor CausalSelfAttentionImpl::forward(const at::Tensor& x, const PackedDocuments* documents) {
  const auto qkv = c_attn_->forward(x).split(x.size(2), 2);
  return project(mix(heads(qkv[0]), heads(qkv[1]), heads(qkv[2]), documents));
}

at::Tensor CausalSelfAttentionImpl::forward(const at::Tensor& x, KeyValueCache& cache, size_t layer) {
  const auto qkv = c_attn_->forward(x).split(x.size(2), 2);
  const int64_t time = x.size(1), end = cache.length + time;
  const auto extend = [&](std::vector<at::Tensor>& layers, const at::Tensor& fresh) {
    if (!layers[layer].defined()) {
      layers[layer] = at::empty({fresh.size(0), n_heads_, block_size_, fresh.size(3)}, fresh.options());
    }
    TORCH_CHECK_VALUE(layers[layer].size(0) == fresh.size(0), "the cache contains ", layers[layer].size(0),
                      " sequences, got ", fresh.size(0));
    layers[layer].narrow(2, cache.length, time).copy_(fresh);
    return layers[layer].narrow(2, 0, end);
  };
  const at::Tensor keys = extend(cache.keys, heads(qkv[1])), values = extend(cache.values, heads(qkv[2]));
  // Each of several new positions attends to the earlier ones. `is_causal` would align the first query with the first
  // key.
  std::optional<at::Tensor> mask;
  if (time > 1) mask = at::ones({time, end}, x.options().dtype(at::kBool)).tril_(cache.length);
  return project(at::scaled_dot_product_attention(heads(qkv[0]), keys, values, mask, is_training() ? dropout_ : 0.0));
}

namespace {

/// Groups two layers under the name "mlp", as in nanoGPT.
class MlpImpl : public torch::nn::Module {};

}  // namespace

TransformerBlockImpl::TransformerBlockImpl(const TransformerConfig& config)
    : n_heads_(config.n_heads), dropout_(config.dropout) {
  ln_1_ = register_module("ln_1", LayerNorm(config.hidden_dim, config.bias));
  attn_ = register_module("attn", CausalSelfAttention(config));
  ln_2_ = register_module("ln_2", LayerNorm(config.hidden_dim, config.bias));
  const auto mlp = register_module("mlp", std::make_shared<MlpImpl>());
  c_fc_ = mlp->register_module("c_fc", linear(config.hidden_dim, 4 * config.hidden_dim, config.bias));
  c_proj_ = mlp->register_module("c_proj", linear(4 * config.hidden_dim, config.hidden_dim, config.bias));
}

/// Returns nullopt if separate operations must be used; else takes `stream`.
std::optional<detail::ResidualStream> TransformerBlockImpl::fused_run(detail::ResidualStream& stream,
                                                                      const PackedDocuments* documents) {
  if (!is_fused_) return std::nullopt;
  const at::Tensor& x = stream.sum;
  const bool drops = dropout_ > 0 && is_training();
  const bool is_on_gpu = detail::runs_gpu_operations(x);
  if (drops) return is_on_gpu ? std::optional(gpu_run(std::move(stream), documents)) : std::nullopt;
  const detail::BlockWeights weights =
      detail::block_weights(ln_1_, attn_->c_attn_, attn_->c_proj_, ln_2_, c_fc_, c_proj_);
  const detail::BlockOptions options = {.n_heads = n_heads_,
                                        .scale = std::sqrt(static_cast<double>(n_heads_) / x.size(-1)),
                                        .eps = kLayerNormEps,
                                        .activation = detail::Activation::kGelu,
                                        .weights_are_transposed = false};
  if (is_on_gpu) {
    if (!detail::has_fused_gpu_block(stream, weights, options)) return gpu_run(std::move(stream), documents);
    return detail::fused_gpu_block(std::move(stream), weights, options,
                                   [&](const auto& query, const auto& key, const auto& value) {
                                     return attn_->mix(query, key, value, documents);
                                   });
  }
  if (stream.branch.defined() || !detail::has_fused_block(x, weights, options)) return std::nullopt;
  const detail::AttentionMask mask{.positions = documents ? documents->positions : at::Tensor()};
  return detail::ResidualStream{detail::fused_block(x, weights, mask, options), {}};
}

detail::ResidualStream TransformerBlockImpl::gpu_run(detail::ResidualStream x, const PackedDocuments* documents) {
  const auto attention = [&](const at::Tensor& normed) { return attn_->forward(normed, documents); };
  const auto mlp = [&](const at::Tensor& normed) {
    const at::Tensor inner = detail::bias_gelu(at::linear(normed, c_fc_->weight), c_fc_->bias, /*by_tanh=*/false);
    return detail::dropout(c_proj_->forward(inner), dropout_, is_training());
  };
  return detail::residual_block(std::move(x), {ln_1_->weight, ln_1_->bias, kLayerNormEps}, attention,
                                {ln_2_->weight, ln_2_->bias, kLayerNormEps}, mlp);
}

detail::ResidualStream TransformerBlockImpl::run(detail::ResidualStream stream, const PackedDocuments* documents) {
  if (const auto out = fused_run(stream, documents)) return *out;
  const at::Tensor x = stream.added();
  return {feed_forward(x + attn_->forward(ln_1_->forward(x), documents)), {}};
}

at::Tensor TransformerBlockImpl::forward(const at::Tensor& x, KeyValueCache& cache, size_t layer) {
  return feed_forward(x + attn_->forward(ln_1_->forward(x), cache, layer));
}

at::Tensor TransformerBlockImpl::feed_forward(const at::Tensor& attended) {
  const at::Tensor inner = at::gelu(c_fc_->forward(ln_2_->forward(attended)));
  return attended + detail::dropout(c_proj_->forward(inner), dropout_, is_training());
}

TransformerImpl::TransformerImpl(TransformerConfig config) : config_(resolved(config)) {
  struct Group : torch::nn::Module {};  // gives the parameters their nanoGPT names
  const auto body = register_module("transformer", std::make_shared<Group>());
  wte_ = body->register_module("wte", torch::nn::Embedding(config_.vocab_size, config_.hidden_dim));
  wpe_ = body->register_module("wpe", torch::nn::Embedding(config_.block_size, config_.hidden_dim));
  const auto layers = body->register_module("h", std::make_shared<Group>());
  for (int64_t layer = 0; layer < config_.n_layers; ++layer) {
    blocks_.push_back(layers->register_module(std::to_string(layer), TransformerBlock(config_)));
  }
  ln_f_ = body->register_module("ln_f", LayerNorm(config_.hidden_dim, config_.bias));
  if (!config_.tied_head) {
    lm_head_ = register_module("lm_head", linear(config_.hidden_dim, config_.vocab_size, /*bias=*/false));
  }
  initialise();
}

void TransformerImpl::initialise() {
  const double residual_std = kInitStd / std::sqrt(2.0 * static_cast<double>(config_.n_layers));
  for (auto& item : named_parameters()) {
    const std::string& name = item.key();
    if (name.ends_with(".bias")) {
      torch::nn::init::zeros_(item.value());
    } else if (item.value().dim() >= 2) {  // the weights of layer norms stay 1
      torch::nn::init::normal_(item.value(), 0.0, name.ends_with("c_proj.weight") ? residual_std : kInitStd);
    }
  }
}

void TransformerImpl::set_fused_blocks(bool on) {
  fused_ = on;
  for (const auto& block : blocks_) block->set_fused(on);
}

void TransformerImpl::set_checkpoint_segments(int64_t segments) {
  TORCH_CHECK_VALUE(segments >= 1 && segments <= config_.n_layers, "segments must be in 1..", config_.n_layers,
                    ", got ", segments);
  checkpoint_segments_ = segments;
}

/// Returns the input of the output layer.
at::Tensor TransformerImpl::run_blocks(const at::Tensor& x, const std::shared_ptr<const PackedDocuments>& documents) {
  if (!gradient_checkpointing_ && checkpoint_segments_ == 1) {
    detail::ResidualStream stream{x, {}};
    for (const auto& block : blocks_) stream = block->run(std::move(stream), documents.get());
    return final_norm(stream.sum, stream.branch);
  }
  std::vector<CheckpointedLayer> layers;
  for (const auto& each : blocks_) {
    layers.push_back(
        {[block = each, documents](const at::Tensor& input) { return block->forward(input, documents.get()); },
         each->parameters()});
  }
  const ActivationCheckpointOptions options{.preserve_rng_state = is_training() && config_.dropout > 0};
  if (!gradient_checkpointing_) return final_norm(checkpoint_sequential(layers, checkpoint_segments_, x, options));
  at::Tensor y = x;
  for (CheckpointedLayer& layer : layers) y = checkpoint(layer.function, y, layer.parameters, options);
  return final_norm(y);
}

/// Returns the embeddings of the positions from `first` on, (T, C).
at::Tensor TransformerImpl::position_rows(const at::Tensor& ids, int64_t first) {
  TORCH_CHECK_VALUE(ids.dim() == 2, "ids must be (batch, time), got ", ids.sizes());
  const int64_t time = ids.size(1), end = first + time;
  TORCH_CHECK_VALUE(time >= 1 && end <= config_.block_size, "ids have ", end, " positions, expected 1..",
                    config_.block_size);
  return wpe_->weight.narrow(0, first, time);
}

/// Adds the embeddings of tokens and positions, (B, T, C) or (T, C).
at::Tensor TransformerImpl::embed(const at::Tensor& ids, const at::Tensor& positions) {
  const at::Tensor x = trainkit::embedding_lookup(ids, wte_->weight) + positions;
  return detail::dropout(x, config_.dropout, is_training());
}

/// Returns the norm of x + branch, or of x: on a GPU in the dtype of the product.
at::Tensor TransformerImpl::final_norm(const at::Tensor& x, const at::Tensor& branch) {
  if (!fused_) return ln_f_->forward(branch.defined() ? x + branch : x);
  return detail::residual_layer_norm(x, branch, {ln_f_->weight, ln_f_->bias, kLayerNormEps}).normed;
}

at::Tensor TransformerImpl::logits(const at::Tensor& hidden) {
  return at::linear(hidden, lm_head_ ? lm_head_->weight : wte_->weight);
}

/// Returns the input of the output layer, (B, T, C).
at::Tensor TransformerImpl::hidden_states(const at::Tensor& ids, const at::Tensor& document_positions) {
  if (!document_positions.defined()) return run_blocks(embed(ids, position_rows(ids, 0)), nullptr);
  TORCH_CHECK_VALUE(document_positions.sizes() == ids.sizes() && document_positions.scalar_type() == at::kLong,
                    "document_positions must be int64 ", ids.sizes(), ", got ", document_positions.scalar_type(), " ",
                    document_positions.sizes());
  position_rows(ids, 0);  // checks the length
  const auto documents = std::make_shared<const PackedDocuments>(document_positions.contiguous());
  return run_blocks(embed(ids, trainkit::embedding_lookup(document_positions, wpe_->weight)), documents);
}

at::Tensor TransformerImpl::forward(const at::Tensor& ids, const at::Tensor& document_positions) {
  return logits(hidden_states(ids, document_positions));
}

at::Tensor TransformerImpl::loss(const at::Tensor& ids, const at::Tensor& targets,
                                 const at::Tensor& document_positions) {
  const at::Tensor hidden = hidden_states(ids, document_positions);
  return linear_cross_entropy(hidden.flatten(0, 1), lm_head_ ? lm_head_->weight : wte_->weight, targets.reshape({-1}),
                              kIgnoreIndex);
}

at::Tensor TransformerImpl::forward(const at::Tensor& ids, KeyValueCache& cache) {
  const c10::AutoGradMode no_grad(false);
  at::Tensor x = embed(ids, position_rows(ids, cache.length));
  cache.keys.resize(blocks_.size());
  cache.values.resize(blocks_.size());
  for (size_t layer = 0; layer < blocks_.size(); ++layer) x = blocks_[layer]->forward(x, cache, layer);
  cache.length += ids.size(1);
  return logits(final_norm(x));
}

int64_t TransformerImpl::num_parameters() const {
  int64_t count = 0;
  for (const at::Tensor& parameter : parameters()) count += parameter.numel();
  return count;
}

at::Tensor language_model_loss(const at::Tensor& logits, const at::Tensor& targets) {
  return cross_entropy(logits.reshape({-1, logits.size(-1)}), targets.reshape({-1}), kIgnoreIndex);
}

}  // namespace trainkit
