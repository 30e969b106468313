#pragma once
/// A decoder-only Transformer in the manner of GPT-2, as small as nanoGPT's.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace trainkit {

struct TransformerConfig {
  /// Rows of the embedding; ids are 0 .. vocab_size - 1.
  int64_t vocab_size = 0;
  /// Longest sequence, and rows of the position embedding.
  int64_t block_size = 128;
  int64_t n_layers = 6;
  /// Must divide hidden_dim; 0: see default_n_heads.
  int64_t n_heads = 0;
  int64_t hidden_dim = 512;
  /// Of embeddings, attention weights and residual branches while training. 0 <= dropout < 1.
  double dropout = 0.0;
  /// Biases of linear layers and layer norms. nanoGPT: "a bit better and faster" without.
  bool bias = false;
  /// The output layer is the transpose of the embedding (Press and Wolf 2017, as in GPT-2).
  bool tied_head = true;
};

/// The heads that a width gets when none are asked for: 8, or the largest number below that divides it.
int64_t default_n_heads(int64_t hidden_dim);

/// All fields that are out of range, in one error of exit code 2 (cli.value).
absl::Status validate(const TransformerConfig& config);

/// LayerNorm over the last dimension with an optional bias, which torch::nn::LayerNorm cannot leave out.
class LayerNormImpl : public torch::nn::Module {
 public:
  LayerNormImpl(int64_t dim, bool bias);
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight;
  at::Tensor bias;  // undefined without
};
TORCH_MODULE(LayerNorm);

/// What attention needs of the positions that a Transformer has seen, so that the next ones cost only themselves.
struct KeyValueCache {
  /// Per layer (B, heads, block_size, C / heads); the first `length` positions are filled. Made by the first forward.
  std::vector<at::Tensor> keys = {};
  std::vector<at::Tensor> values = {};
  int64_t length = 0;
};

/// Causal self-attention of several heads, (B, T, C) to (B, T, C).
class CausalSelfAttentionImpl : public torch::nn::Module {
 public:
  explicit CausalSelfAttentionImpl(const TransformerConfig& config);
  at::Tensor forward(const at::Tensor& x);
  /// The same for positions that follow the `cache.length` of the cache, whose `layer` it fills.
  at::Tensor forward(const at::Tensor& x, KeyValueCache& cache, size_t layer);

 private:
  at::Tensor heads(const at::Tensor& x) const;
  at::Tensor project(const at::Tensor& mixed);

  friend class TransformerBlockImpl;  // which may compute all of it at once

  int64_t n_heads_;
  int64_t block_size_;
  double dropout_;
  torch::nn::Linear c_attn_{nullptr};  // queries, keys and values at once
  torch::nn::Linear c_proj_{nullptr};
};
TORCH_MODULE(CausalSelfAttention);

/// x + attention(norm(x)), then x + mlp(norm(x)); the MLP is four times as wide, with GELU.
class TransformerBlockImpl : public torch::nn::Module {
 public:
  explicit TransformerBlockImpl(const TransformerConfig& config);
  at::Tensor forward(const at::Tensor& x);
  at::Tensor forward(const at::Tensor& x, KeyValueCache& cache, size_t layer);
  /// See TransformerImpl.
  void set_fused(bool on) { is_fused_ = on; }

 private:
  std::optional<at::Tensor> fused_forward(const at::Tensor& x);
  at::Tensor gpu_forward(const at::Tensor& x);
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

/// Token ids to logits of the next token.
///
///   Transformer model(TransformerConfig{.vocab_size = 65, .block_size = 64, .n_layers = 4, .n_heads = 4,
///                                       .hidden_dim = 128});
///   at::Tensor loss = language_model_loss(model->forward(x), y);   // x, y: (B, T) int64
///
/// Pre-norm blocks, learned positions, GELU (exact), initialised as nanoGPT: normal(0, 0.02), the projections back into
/// the residual stream normal(0, 0.02 / sqrt(2 n_layers)), biases 0. Parameters are named and shaped as in nanoGPT
/// ("transformer.h.0.attn.c_attn.weight" is (3C, C)); with a tied head there is no "lm_head.weight", the embedding is
/// both. Source: https://github.com/karpathy/nanoGPT/blob/master/model.py
class TransformerImpl : public torch::nn::Module {
 public:
  /// Throws c10::ValueError with validate()'s text if the configuration is bad.
  explicit TransformerImpl(TransformerConfig config);

  /// @param ids (B, T) int64, 1 <= T <= block_size. @return logits (B, T, vocab_size).
  at::Tensor forward(const at::Tensor& ids);

  /// Logits of `ids` (B, T) as the continuation of what `cache` has seen, and adds them to it: those of forward() for
  /// the whole sequence, without its work. Without gradients. An error if cache.length + T is above block_size; then
  /// start with an empty cache, for every position is another.
  at::Tensor forward(const at::Tensor& ids, KeyValueCache& cache);

  /// Keep only the input of each block for backward and compute the rest again there (nn/checkpoint.h): the same
  /// gradients for less memory and about a third more time.
  void set_gradient_checkpointing(bool on) { gradient_checkpointing_ = on; }
  bool gradient_checkpointing() const { return gradient_checkpointing_; }
  /// The same for `segments` runs of blocks, of which all but the last are computed again (checkpoint_sequential);
  /// 1: none. Throws c10::ValueError unless 1 <= segments <= n_layers.
  void set_checkpoint_segments(int64_t segments);

  /// Compute each block by kernels of our own, where that is possible. On the CPU it is one autograd node with its own
  /// backward, in float32 or under autocast to bfloat16, without dropout, heads of a multiple of 16 values. On CUDA
  /// residual and layer norm are one operation, and bias and GELU, in float32, bfloat16 and float16. On from the start.
  /// The results are those of the separate operations within rounding; a second derivative has only those.
  void set_fused_blocks(bool on);

  /// With n_heads filled in.
  const TransformerConfig& config() const { return config_; }
  /// Elements of all parameters.
  int64_t num_parameters() const;

 private:
  void initialise();
  at::Tensor embed(const at::Tensor& ids, int64_t first_position);
  at::Tensor logits(const at::Tensor& x);
  at::Tensor run_blocks(const at::Tensor& x);

  TransformerConfig config_;
  bool gradient_checkpointing_ = false;
  int64_t checkpoint_segments_ = 1;
  torch::nn::Embedding wte_{nullptr};
  torch::nn::Embedding wpe_{nullptr};
  std::vector<TransformerBlock> blocks_;
  LayerNorm ln_f_{nullptr};
  torch::nn::Linear lm_head_{nullptr};  // null if tied
};
TORCH_MODULE(Transformer);

/// Targets with this value do not count; torch's own default.
inline constexpr int64_t kIgnoreIndex = -100;

/// Mean cross-entropy in nats over the targets that are not kIgnoreIndex. logits (B, T, V), targets (B, T) int64.
at::Tensor language_model_loss(const at::Tensor& logits, const at::Tensor& targets);

struct GenerateOptions {
  int64_t max_tokens = 200;
  /// Below 1 more certain, above 1 more varied; 0 takes the most probable token.
  double temperature = 0.8;
  /// Draw only from the k most probable tokens; 0: from all. nanoGPT's sample.py: 200.
  int64_t top_k = 200;
  uint64_t seed = 0;
  /// Tokens that are forgotten at once when the model has seen block_size of them. Every position is another one then,
  /// so that the rest is computed anew: 1 keeps the longest context and computes all of it for every token, 0 stands
  /// for half of block_size.
  int64_t slide = 0;
};

/// Continues `prompt`: the model sees the last tokens, at most block_size, and once it has seen that many at least
/// block_size + 1 - slide. What it has seen is kept (KeyValueCache): a token costs one position, not all. Sets the
/// model to evaluation for the time and restores it. The same seed gives the same tokens on one kind of device. Reads
/// from the device once per token. Throws c10::ValueError if the prompt is empty or an option is out of range,
/// c10::IndexError for an id outside the vocabulary. @return only the new tokens.
std::vector<int64_t> generate(Transformer& model, const std::vector<int64_t>& prompt,
                              const GenerateOptions& options = {});

}  // namespace trainkit
