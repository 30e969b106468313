#pragma once
/// GPT-2 as Hugging Face's `transformers` has it: its layout, its names, its files, its numbers.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainkit/core/fs.h"
#include "trainkit/nn/linear.h"

namespace trainkit {

/// The fields of config.json that matter, with the names and defaults of transformers.GPT2Config (5.23): GPT-2 small.
struct GPT2Config {
  /// Rows of the token embedding; ids are 0 .. vocab_size - 1.
  int64_t vocab_size = 50257;
  /// Longest sequence, and rows of the position embedding.
  int64_t n_positions = 1024;
  /// Width of the hidden states.
  int64_t n_embd = 768;
  int64_t n_layer = 12;
  /// Must divide n_embd.
  int64_t n_head = 12;
  /// Width inside the MLP; 0 (null in the file) is 4 * n_embd.
  int64_t n_inner = 0;
  /// "gelu_new" and "gelu_pytorch_tanh" (by tanh), "gelu" (exact), "relu", "silu" and "swish".
  std::string activation_function = "gelu_new";
  /// Of embeddings, attention weights and residual branches while training. 0 <= p < 1.
  double embd_pdrop = 0.1;
  double attn_pdrop = 0.1;
  double resid_pdrop = 0.1;
  double layer_norm_epsilon = 1e-5;
  /// Standard deviation of the weights of a new model.
  double initializer_range = 0.02;
  /// Divide attention scores by the root of a head's width; and by the layer's number, from 1.
  bool scale_attn_weights = true;
  bool scale_attn_by_inverse_layer_idx = false;
};

/// All fields that are out of range, in one error of exit code 2 (cli.value).
absl::Status validate(const GPT2Config& config);

/// Reads config.json. Fields that this model does not use are passed over. Errors (weights.config, exit code 5) name
/// the field: no JSON, a wrong type or range, another model_type than gpt2, cross-attention.
absl::StatusOr<GPT2Config> parse_gpt2_config(std::string_view json, const std::string& path);

/// What attention may look at. Both undefined: each token at itself and those before it.
struct GPT2Mask {
  at::Tensor is_token;  // (B, T) bool: false at padding
  at::Tensor allowed;   // (B, 1, T, T) bool: whether the query's row may look at the key's column
};

/// Self-attention of several heads, (B, T, n_embd) to (B, T, n_embd).
class GPT2AttentionImpl : public torch::nn::Module {
 public:
  GPT2AttentionImpl(const GPT2Config& config, int64_t layer);
  at::Tensor forward(const at::Tensor& x, const GPT2Mask& mask);

 private:
  friend class GPT2BlockImpl;  // which may compute all of it at once

  int64_t n_head_;
  double scale_, attn_pdrop_, resid_pdrop_;
  Conv1D c_attn_{nullptr};  // queries, keys and values at once
  Conv1D c_proj_{nullptr};
};
TORCH_MODULE(GPT2Attention);

/// x + attention(norm(x)), then x + mlp(norm(x)).
class GPT2BlockImpl : public torch::nn::Module {
 public:
  GPT2BlockImpl(const GPT2Config& config, int64_t layer);
  at::Tensor forward(const at::Tensor& x, const GPT2Mask& mask);
  /// See GPT2ModelImpl.
  void set_fused(bool on) { is_fused_ = on; }

 private:
  std::optional<at::Tensor> fused_forward(const at::Tensor& x, const GPT2Mask& mask);
  at::Tensor gpu_forward(const at::Tensor& x, const GPT2Mask& mask);

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

/// Token ids to hidden states.
///
///   GPT2Model model = load_gpt2("gpt2").value();              // a folder with config.json and model.safetensors
///   at::Tensor hidden = model->forward(ids, mask);            // ids, mask: (B, T) int64; hidden: (B, T, n_embd)
///   at::Tensor pooled = last_token_hidden(hidden, mask);      // (B, n_embd)
///
/// Parameters are named and shaped as in transformers.GPT2Model ("h.0.attn.c_attn.weight" is (n_embd, 3 n_embd)). A new
/// model is initialised as there: normal(0, initializer_range), the projections back into the residual stream divided
/// by the root of 2 n_layer, biases 0. The linear layers of the blocks are Conv1D, which can carry LoRA adapters
/// (nn/lora.h): c_attn, c_proj, c_fc. Source: Radford et al. 2019; transformers 5.23, models/gpt2/modeling_gpt2.py.
class GPT2ModelImpl : public torch::nn::Module {
 public:
  /// Throws c10::ValueError with validate()'s text if the configuration is bad.
  explicit GPT2ModelImpl(GPT2Config config = {});

  /// The last hidden states, after the final norm.
  ///
  /// @param input_ids (B, T) int64, 1 <= T <= n_positions.
  /// @param attention_mask (B, T), bool or a number: 0 where a token is padding, which no token looks at. Padding may
  ///   stand on either side. Undefined: there is none, and attention needs no mask in memory.
  /// @param position_ids (B, T) or (1, T) int64. Undefined: 0 .. T - 1 for every row, as transformers does without
  ///   them, with padding on the left too; there, position_ids_of(attention_mask) counts from the first token.
  /// @return (B, T, n_embd). What stands at padding is finite and of no use.
  at::Tensor forward(const at::Tensor& input_ids, const at::Tensor& attention_mask = {},
                     const at::Tensor& position_ids = {});

  /// Keep only the input of each block for backward and compute the rest again there (nn/checkpoint.h).
  void set_gradient_checkpointing(bool on) { gradient_checkpointing_ = on; }
  bool gradient_checkpointing() const { return gradient_checkpointing_; }
  /// The same for `segments` runs of blocks, of which all but the last are computed again (checkpoint_sequential);
  /// 1: none. Throws c10::ValueError unless 1 <= segments <= n_layer.
  void set_checkpoint_segments(int64_t segments);

  /// Compute each block by kernels of our own, where that is possible. On the CPU it is one autograd node with its own
  /// backward, in float32 or under autocast to bfloat16, without active dropout and adapters that are not merged, a
  /// GELU, heads of a multiple of 16 values. On CUDA residual and layer norm are one operation, and so are bias and
  /// GELU of a layer without such an adapter, in float32, bfloat16 and float16. On from the start. The results are
  /// those of the separate operations within rounding; a second derivative has only those.
  void set_fused_blocks(bool on);

  const GPT2Config& config() const { return config_; }
  /// Elements of all parameters.
  int64_t num_parameters() const;

 private:
  void initialise();
  at::Tensor run_blocks(const at::Tensor& x, const GPT2Mask& mask);

  GPT2Config config_;
  bool gradient_checkpointing_ = false;
  int64_t checkpoint_segments_ = 1;
  torch::nn::Embedding wte_{nullptr};
  torch::nn::Embedding wpe_{nullptr};
  std::vector<GPT2Block> blocks_;
  torch::nn::LayerNorm ln_f_{nullptr};
};
TORCH_MODULE(GPT2Model);

/// Positions that count the tokens of each row from 0 wherever the padding stands; 0 at padding. (B, T) int64.
/// Source: transformers 5.23, generation/utils.py (it was 1 at padding before version 5).
at::Tensor position_ids_of(const at::Tensor& attention_mask);

/// The hidden state of the last token of each row that is no padding: (B, T, C) and (B, T) to (B, C). Of a row of
/// padding alone, the first. Reads nothing from the device. Source: transformers.GPT2ForSequenceClassification.
at::Tensor last_token_hidden(const at::Tensor& hidden, const at::Tensor& attention_mask);

/// Loads a model from a folder as `save_pretrained` of transformers writes it: config.json with model.safetensors, or
/// with pytorch_model.bin of any age. Heads of GPT2LMHeadModel and the like are left out, and so are the masks that
/// older files keep as "attn.bias". Weights of half precision become float32.
///
/// Errors are of exit code 5 and name the file: those of parse_gpt2_config, WeightFile and copy_named_tensors
/// (weights.match); sizes of the configuration that the weights do not have are found before the model is made, so
/// that a small file cannot ask for a lot of memory. The model is in evaluation mode, as after from_pretrained.
absl::StatusOr<GPT2Model> load_gpt2(const std::string& folder, const Fs& fs = Fs::posix());

/// Writes config.json and model.safetensors into `folder`, which is made if need be, for
/// GPT2Model.from_pretrained(folder). Each file as a whole or not at all. Adapters of LoRA must be merged or removed:
/// kFailedPrecondition. Errors of writing are of exit code 6.
absl::Status save_gpt2(const GPT2ModelImpl& model, const std::string& folder, const Fs& fs = Fs::posix());

}  // namespace trainkit
