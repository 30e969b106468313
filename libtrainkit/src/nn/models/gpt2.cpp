#include "trainkit/nn/gpt2.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tril.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/init.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "core/base/option_problems.h"
#include "nn/cpu/fused_block.h"
#include "nn/gpu/fused_gpu_block.h"
#include "nn/gpu/fused_ops.h"
#include "nn/models/dropout.h"
#include "trainkit/core/error.h"
#include "trainkit/nn/activation_checkpoint.h"
#include "trainkit/nn/functional.h"

namespace trainkit {

/// Attention mask. If both members are undefined, each token attends to itself and to earlier tokens.
struct GPT2Mask {
  at::Tensor is_token;  // (B, T) bool: false at padding
  at::Tensor allowed;   // (B, 1, T, T) bool: whether the query's row may attend to the key's column
};

/// Multi-head self-attention, (B, T, n_embd) to (B, T, n_embd).
class GPT2AttentionImpl : public torch::nn::Module {
 public:
  GPT2AttentionImpl(const GPT2Config& config, int64_t layer);
  at::Tensor forward(const at::Tensor& x, const GPT2Mask& mask);

 private:
  friend class GPT2BlockImpl;  // for the fused block

  at::Tensor mix(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const GPT2Mask& mask) const;

  int64_t n_head_;
  double scale_, attn_pdrop_, resid_pdrop_;
  Conv1D c_attn_{nullptr};  // queries, keys and values in one product
  Conv1D c_proj_{nullptr};
};
TORCH_MODULE(GPT2Attention);

/// Computes x + attention(norm(x)), then x + mlp(norm(x)).
class GPT2BlockImpl : public torch::nn::Module {
 public:
  GPT2BlockImpl(const GPT2Config& config, int64_t layer);
  at::Tensor forward(const at::Tensor& x, const GPT2Mask& mask) { return run({x, {}}, mask).added(); }
  /// As forward, for the output of another block; the next layer norm adds the parts of the result.
  detail::ResidualStream run(detail::ResidualStream x, const GPT2Mask& mask);
  /// See GPT2ModelImpl::set_fused_blocks.
  void set_fused(bool on) { is_fused_ = on; }

 private:
  std::optional<detail::ResidualStream> fused_run(detail::ResidualStream& stream, const GPT2Mask& mask);
  detail::ResidualStream gpu_run(detail::ResidualStream x, const GPT2Mask& mask);

  std::string activation_;
  double resid_pdrop_, eps_;
  bool is_fused_ = true;
  torch::nn::LayerNorm ln_1_{nullptr};
  GPT2Attention attn_{nullptr};
  torch::nn::LayerNorm ln_2_{nullptr};
  Conv1D c_fc_{nullptr};
  Conv1D c_proj_{nullptr};
};
TORCH_MODULE(GPT2Block);

namespace {

constexpr std::string_view kActivations[] = {"gelu_new", "gelu_pytorch_tanh", "gelu", "relu", "silu", "swish"};

at::Tensor activate(const std::string& name, const at::Tensor& x) {
  if (name == "relu") return at::relu(x);
  if (name == "silu" || name == "swish") return at::silu(x);
  return at::gelu(x, name == "gelu" ? "none" : "tanh");
}

torch::nn::LayerNorm layer_norm(const GPT2Config& config) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({config.n_embd}).eps(config.layer_norm_epsilon));
}

/// Groups submodules, so that parameters get the name parts "h" and "mlp".
struct GroupImpl : torch::nn::Module {};

GPT2Config checked(GPT2Config config) {
  const absl::Status status = validate(config);
  TORCH_CHECK_VALUE(status.ok(), status.message());
  return config;
}

GPT2Mask causal_and(const at::Tensor& attention_mask) {
  const at::Tensor is_token = attention_mask.ne(0).contiguous();
  const int64_t time = is_token.size(1);
  return {is_token, is_token.view({is_token.size(0), 1, 1, time}).expand({-1, 1, time, time}).tril()};
}

}  // namespace

absl::Status validate(const GPT2Config& config) {
  detail::OptionProblems problems;
  const auto in_range = [&](const char* name, int64_t value, int64_t least) {
    problems.require(value >= least, name, fmt::format(">= {}", least), value);
    // Above any real model; the product of two such values does not overflow.
    problems.require(value <= INT32_MAX, name, fmt::format("<= {}", INT32_MAX), value);
  };
  in_range("vocab_size", config.vocab_size, 1);
  in_range("n_positions", config.n_positions, 1);
  in_range("n_embd", config.n_embd, 1);
  in_range("n_layer", config.n_layer, 1);
  in_range("n_inner", config.n_inner, 0);
  problems.require(config.n_head >= 1 && config.n_embd % config.n_head == 0, "n_head",
                   fmt::format("a divisor of n_embd {}", config.n_embd), config.n_head);
  for (const auto& [name, p] : {std::pair("embd_pdrop", config.embd_pdrop), std::pair("attn_pdrop", config.attn_pdrop),
                                std::pair("resid_pdrop", config.resid_pdrop)}) {
    problems.require(p >= 0.0 && p < 1.0, name, "in [0, 1)", p);
  }
  problems.require(config.layer_norm_epsilon > 0.0 && config.layer_norm_epsilon < 1.0, "layer_norm_epsilon",
                   "in (0, 1)", config.layer_norm_epsilon);
  problems.require(detail::finite_not_negative(config.initializer_range), "initializer_range", ">= 0",
                   config.initializer_range);
  problems.require(
      std::find(std::begin(kActivations), std::end(kActivations), config.activation_function) != std::end(kActivations),
      "activation_function", fmt::format("one of {}", fmt::join(kActivations, ", ")),
      escape_text(config.activation_function));
  if (problems.empty()) return absl::OkStatus();
  return to_status({.exit_code = ExitCode::kUsage, .id = "cli.value", .problem = problems.text()});
}

GPT2AttentionImpl::GPT2AttentionImpl(const GPT2Config& config, int64_t layer)
    : n_head_(config.n_head), scale_(1.0), attn_pdrop_(config.attn_pdrop), resid_pdrop_(config.resid_pdrop) {
  const int64_t head_width = config.n_embd / config.n_head;
  if (config.scale_attn_weights) scale_ = 1.0 / std::sqrt(static_cast<double>(head_width));
  if (config.scale_attn_by_inverse_layer_idx) scale_ /= static_cast<double>(layer + 1);
  c_attn_ = register_module("c_attn", Conv1D(config.n_embd, 3 * config.n_embd));
  c_proj_ = register_module("c_proj", Conv1D(config.n_embd, config.n_embd));
}

at::Tensor GPT2AttentionImpl::mix(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                  const GPT2Mask& mask) const {
  const auto bias = mask.allowed.defined() ? std::optional(mask.allowed) : std::nullopt;
  return at::scaled_dot_product_attention(query, key, value, bias,
                                          detail::attention_dropout(attn_pdrop_, is_training()),
                                          /*is_causal=*/!bias, scale_);
}

at::Tensor GPT2AttentionImpl::forward(const at::Tensor& x, const GPT2Mask& mask) {
  const auto heads = [&](const at::Tensor& part) {  // (B, T, C) to (B, heads, T, C / heads)
    return part.view({x.size(0), x.size(1), n_head_, x.size(2) / n_head_}).transpose(1, 2);
  };
  const auto qkv = c_attn_->forward(x).split(x.size(2), 2);
  const at::Tensor mixed = mix(heads(qkv[0]), heads(qkv[1]), heads(qkv[2]), mask);
  return detail::dropout(c_proj_->forward(mixed.transpose(1, 2).flatten(2)), resid_pdrop_, is_training());
}

GPT2BlockImpl::GPT2BlockImpl(const GPT2Config& config, int64_t layer)
    : activation_(config.activation_function), resid_pdrop_(config.resid_pdrop), eps_(config.layer_norm_epsilon) {
  const int64_t inner = config.n_inner > 0 ? config.n_inner : 4 * config.n_embd;
  ln_1_ = register_module("ln_1", layer_norm(config));
  attn_ = register_module("attn", GPT2Attention(config, layer));
  ln_2_ = register_module("ln_2", layer_norm(config));
  const auto mlp = register_module("mlp", std::make_shared<GroupImpl>());
  c_fc_ = mlp->register_module("c_fc", Conv1D(config.n_embd, inner));
  c_proj_ = mlp->register_module("c_proj", Conv1D(inner, config.n_embd));
}

/// Returns nullopt if separate operations must be used; else takes `stream`.
std::optional<detail::ResidualStream> GPT2BlockImpl::fused_run(detail::ResidualStream& stream, const GPT2Mask& mask) {
  if (!is_fused_) return std::nullopt;
  const at::Tensor& x = stream.sum;
  const bool is_on_gpu = detail::runs_gpu_operations(x);
  const auto separate = [&] { return is_on_gpu ? std::optional(gpu_run(std::move(stream), mask)) : std::nullopt; };
  const bool drops = is_training() && (resid_pdrop_ > 0 || attn_->attn_pdrop_ > 0);
  if (drops || !activation_.starts_with("gelu")) return separate();
  for (const Conv1D& layer : {attn_->c_attn_, attn_->c_proj_, c_fc_, c_proj_}) {
    if (layer->has_adapter() && !layer->is_merged()) return separate();
  }
  const detail::BlockWeights weights =
      detail::block_weights(ln_1_, attn_->c_attn_, attn_->c_proj_, ln_2_, c_fc_, c_proj_);
  const detail::BlockOptions options = {
      .n_heads = attn_->n_head_,
      .scale = attn_->scale_,
      .eps = eps_,
      .activation = activation_ == "gelu" ? detail::Activation::kGelu : detail::Activation::kGeluTanh,
      .weights_are_transposed = true};
  if (is_on_gpu) {
    if (!detail::has_fused_gpu_block(stream, weights, options)) return separate();
    return detail::fused_gpu_block(
        std::move(stream), weights, options,
        [&](const auto& query, const auto& key, const auto& value) { return attn_->mix(query, key, value, mask); });
  }
  if (stream.branch.defined() || !detail::has_fused_block(x, weights, options)) return std::nullopt;
  return detail::ResidualStream{detail::fused_block(x, weights, {.key_mask = mask.is_token}, options), {}};
}

detail::ResidualStream GPT2BlockImpl::gpu_run(detail::ResidualStream x, const GPT2Mask& mask) {
  const auto attention = [&](const at::Tensor& normed) { return attn_->forward(normed, mask); };
  const bool is_plain = activation_.starts_with("gelu") && (!c_fc_->has_adapter() || c_fc_->is_merged());
  const auto mlp = [&](const at::Tensor& normed) {
    const at::Tensor inner =
        is_plain ? detail::bias_gelu(at::linear(normed, c_fc_->weight.t()), c_fc_->bias, activation_ != "gelu")
                 : activate(activation_, c_fc_->forward(normed));
    return detail::dropout(c_proj_->forward(inner), resid_pdrop_, is_training());
  };
  return detail::residual_block(std::move(x), {ln_1_->weight, ln_1_->bias, eps_}, attention,
                                {ln_2_->weight, ln_2_->bias, eps_}, mlp);
}

detail::ResidualStream GPT2BlockImpl::run(detail::ResidualStream stream, const GPT2Mask& mask) {
  if (const auto out = fused_run(stream, mask)) return *out;
  const at::Tensor x = stream.added();
  const at::Tensor attended = x + attn_->forward(ln_1_->forward(x), mask);
  const at::Tensor inner = activate(activation_, c_fc_->forward(ln_2_->forward(attended)));
  return {attended + detail::dropout(c_proj_->forward(inner), resid_pdrop_, is_training()), {}};
}

GPT2ModelImpl::GPT2ModelImpl(GPT2Config config) : config_(checked(std::move(config))) {
  wte_ = register_module("wte", torch::nn::Embedding(config_.vocab_size, config_.n_embd));
  wpe_ = register_module("wpe", torch::nn::Embedding(config_.n_positions, config_.n_embd));
  const auto layers = register_module("h", std::make_shared<GroupImpl>());
  for (int64_t layer = 0; layer < config_.n_layer; ++layer) {
    blocks_.push_back(layers->register_module(std::to_string(layer), GPT2Block(config_, layer)));
  }
  ln_f_ = register_module("ln_f", layer_norm(config_));
  initialise();
}

void GPT2ModelImpl::initialise() {
  const double std = config_.initializer_range;
  const double residual_std = std / std::sqrt(2.0 * static_cast<double>(config_.n_layer));
  for (auto& item : named_parameters()) {
    if (item.value().dim() < 2) continue;  // biases are 0, norms 1 and 0
    torch::nn::init::normal_(item.value(), 0.0, item.key().ends_with("c_proj.weight") ? residual_std : std);
  }
}

void GPT2ModelImpl::set_fused_blocks(bool on) {
  for (const auto& block : blocks_) block->set_fused(on);
}

void GPT2ModelImpl::set_checkpoint_segments(int64_t segments) {
  TORCH_CHECK_VALUE(segments >= 1 && segments <= config_.n_layer, "segments must be in 1..", config_.n_layer, ", got ",
                    segments);
  checkpoint_segments_ = segments;
}

at::Tensor GPT2ModelImpl::run_blocks(const at::Tensor& x, const GPT2Mask& mask) {
  if (!gradient_checkpointing_ && checkpoint_segments_ == 1) {
    detail::ResidualStream stream{x, {}};
    for (const auto& block : blocks_) stream = block->run(std::move(stream), mask);
    return stream.added();
  }
  std::vector<CheckpointedLayer> layers;
  for (const auto& each : blocks_) {
    layers.push_back({[block = each, mask](const at::Tensor& input) mutable { return block->forward(input, mask); },
                      each->parameters()});
  }
  const bool random = is_training() && (config_.attn_pdrop > 0 || config_.resid_pdrop > 0);
  const ActivationCheckpointOptions options{.preserve_rng_state = random};
  if (!gradient_checkpointing_) return checkpoint_sequential(layers, checkpoint_segments_, x, options);
  at::Tensor y = x;
  for (CheckpointedLayer& layer : layers) y = checkpoint(layer.function, y, layer.parameters, options);
  return y;
}

at::Tensor GPT2ModelImpl::forward(const at::Tensor& input_ids, const at::Tensor& attention_mask,
                                  const at::Tensor& position_ids) {
  TORCH_CHECK_VALUE(input_ids.dim() == 2, "input_ids must be (batch, time), got ", input_ids.sizes());
  const int64_t time = input_ids.size(1);
  TORCH_CHECK_VALUE(time >= 1 && time <= config_.n_positions, "input_ids have ", time, " positions, expected 1..",
                    config_.n_positions);
  TORCH_CHECK_VALUE(!attention_mask.defined() || attention_mask.sizes() == input_ids.sizes(),
                    "attention_mask must have the shape of input_ids, ", input_ids.sizes(), ", got ",
                    attention_mask.sizes());
  const at::Tensor places =
      position_ids.defined() ? trainkit::embedding_lookup(position_ids, wpe_->weight) : wpe_->weight.narrow(0, 0, time);
  const at::Tensor x =
      detail::dropout(trainkit::embedding_lookup(input_ids, wte_->weight) + places, config_.embd_pdrop, is_training());
  const GPT2Mask mask = attention_mask.defined() ? causal_and(attention_mask) : GPT2Mask();
  return ln_f_->forward(run_blocks(x, mask));
}

int64_t GPT2ModelImpl::num_parameters() const {
  int64_t count = 0;
  for (const at::Tensor& parameter : parameters()) count += parameter.numel();
  return count;
}

at::Tensor position_ids_of(const at::Tensor& attention_mask) {
  const at::Tensor is_token = attention_mask.ne(0).to(at::kLong);
  return (is_token.cumsum(1) - 1) * is_token;
}

at::Tensor last_token_hidden(const at::Tensor& hidden, const at::Tensor& attention_mask) {
  TORCH_CHECK_VALUE(hidden.dim() == 3 && attention_mask.sizes() == hidden.sizes().slice(0, 2),
                    "hidden must be (batch, time, width) and attention_mask (batch, time), got ", hidden.sizes(),
                    " and ", attention_mask.sizes());
  const at::Tensor places = at::arange(hidden.size(1), attention_mask.options().dtype(at::kLong));
  const at::Tensor last = (attention_mask.ne(0) * places).argmax(1);  // (B)
  return hidden.gather(1, last.view({-1, 1, 1}).expand({-1, 1, hidden.size(2)})).squeeze(1);
}

}  // namespace trainkit
