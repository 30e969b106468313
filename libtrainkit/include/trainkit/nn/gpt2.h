#pragma once
/// GPT-2 with the layout, names and files of Hugging Face's `transformers`.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "trainkit/core/fs.h"
#include "trainkit/nn/linear.h"

namespace trainkit {

struct GPT2Mask;
class GPT2BlockImpl;

/// Fields of config.json, with the names and defaults of transformers.GPT2Config (5.23): GPT-2 small.
struct GPT2Config {
  /// Rows of the token embedding. Ids are 0 .. vocab_size - 1.
  int64_t vocab_size = 50257;
  /// Longest sequence, and rows of the position embedding.
  int64_t n_positions = 1024;
  /// Width of the hidden states.
  int64_t n_embd = 768;
  int64_t n_layer = 12;
  /// Must divide n_embd.
  int64_t n_head = 12;
  /// Width inside the MLP. 0 (null in the file) means 4 * n_embd.
  int64_t n_inner = 0;
  /// "gelu_new" or "gelu_pytorch_tanh" (tanh approximation), "gelu" (exact), "relu", "silu" or "swish".
  std::string activation_function = "gelu_new";
  /// Dropout of embeddings, attention weights and residual branches in training. 0 <= p < 1.
  double embd_pdrop = 0.1;
  double attn_pdrop = 0.1;
  double resid_pdrop = 0.1;
  double layer_norm_epsilon = 1e-5;
  /// Standard deviation of the weights of a new model.
  double initializer_range = 0.02;
  /// Divide attention scores by the square root of the head width; by the layer's number, counted from 1.
  bool scale_attn_weights = true;
  bool scale_attn_by_inverse_layer_idx = false;
};

/// Checks all fields. One error of exit code 2 (cli.value) lists every field that is out of range.
absl::Status validate(const GPT2Config& config);

/// Parses config.json. Ignores fields that this model does not use. Errors (weights.config, exit code 5) name the
/// field: invalid JSON, a wrong type or range, a model_type other than gpt2, cross-attention.
absl::StatusOr<GPT2Config> parse_gpt2_config(std::string_view json, const std::string& path);

/// Maps token ids to hidden states.
///
///   GPT2Model model = load_gpt2("gpt2").value();              // a folder with config.json and model.safetensors
///   at::Tensor hidden = model->forward(ids, mask);            // ids, mask: (B, T) int64; hidden: (B, T, n_embd)
///   at::Tensor pooled = last_token_hidden(hidden, mask);      // (B, n_embd)
///
/// Parameters have the names and shapes of transformers.GPT2Model ("h.0.attn.c_attn.weight" is (n_embd, 3 n_embd)). So
/// does the initialisation: normal(0, initializer_range), projections into the residual stream divided by sqrt(2
/// n_layer), biases 0. The linear layers of the blocks (c_attn, c_proj, c_fc) are Conv1D, which can carry LoRA adapters
/// (nn/lora.h). Source: Radford et al. 2019; transformers 5.23, models/gpt2/modeling_gpt2.py.
class GPT2ModelImpl : public torch::nn::Module {
 public:
  /// Throws c10::ValueError with the text of validate() if the configuration is invalid.
  explicit GPT2ModelImpl(GPT2Config config = {});

  /// Returns the last hidden states, after the final norm.
  ///
  /// @param input_ids (B, T) int64, 1 <= T <= n_positions.
  /// @param attention_mask (B, T), bool or a number: 0 at padding, which no token attends to. Padding may be on either
  /// side. Undefined: no padding, and attention needs no mask in memory.
  /// @param position_ids (B, T) or (1, T) int64. Undefined: 0 .. T - 1 for every row, as in transformers, also with
  /// padding on the left; position_ids_of(attention_mask) counts from the first token instead.
  /// @return (B, T, n_embd). Values at padding are finite but meaningless.
  at::Tensor forward(const at::Tensor& input_ids, const at::Tensor& attention_mask = {},
                     const at::Tensor& position_ids = {});

  /// Keep only the input of each block for backward and recompute the rest there (nn/activation_checkpoint.h).
  void set_gradient_checkpointing(bool on) { gradient_checkpointing_ = on; }
  bool gradient_checkpointing() const { return gradient_checkpointing_; }
  /// Like set_gradient_checkpointing for `segments` segments of blocks; all but the last are recomputed
  /// (checkpoint_sequential). 1 disables it. Throws c10::ValueError unless 1 <= segments <= n_layer.
  void set_checkpoint_segments(int64_t segments);

  /// Compute each block with fused kernels where they apply. Enabled by default. On the CPU a block is one autograd
  /// node with its own backward. It requires float32 or autocast to bfloat16, a GELU, and head widths that are
  /// multiples of 16; no dropout may be active and no adapter unmerged. On CUDA residual and layer norm are one
  /// operation, and so are bias and GELU of a layer without an unmerged adapter, in float32, bfloat16 and float16.
  /// Results equal those of the separate operations within rounding. Only the separate operations have a second
  /// derivative.
  void set_fused_blocks(bool on);

  const GPT2Config& config() const { return config_; }
  /// Total number of elements of all parameters.
  int64_t num_parameters() const;

 private:
  void initialise();
  at::Tensor run_blocks(const at::Tensor& x, const GPT2Mask& mask);

  GPT2Config config_;
  bool gradient_checkpointing_ = false;
  int64_t checkpoint_segments_ = 1;
  torch::nn::Embedding wte_{nullptr};
  torch::nn::Embedding wpe_{nullptr};
  std::vector<std::shared_ptr<GPT2BlockImpl>> blocks_;
  torch::nn::LayerNorm ln_f_{nullptr};
};
TORCH_MODULE(GPT2Model);

/// Returns positions that count the tokens of each row from 0, independent of padding; 0 at padding. (B, T) int64.
/// Source: transformers 5.23, generation/utils.py (1 at padding before version 5).
at::Tensor position_ids_of(const at::Tensor& attention_mask);

/// Returns the hidden state of the last non-padding token of each row: (B, T, C) and (B, T) to (B, C). For a row with
/// only padding, returns the first position. Does not synchronise the device. Source:
/// transformers.GPT2ForSequenceClassification.
at::Tensor last_token_hidden(const at::Tensor& hidden, const at::Tensor& attention_mask);

/// Loads a model from a folder written by `save_pretrained` of transformers: config.json with model.safetensors, or
/// with pytorch_model.bin of any version. Ignores heads (GPT2LMHeadModel) and the masks that older files store as
/// "attn.bias". Converts half precision to float32. The model is in evaluation mode, as after from_pretrained: call
/// train() to train it with dropout.
///
/// Errors have exit code 5 and name the file: those of parse_gpt2_config, WeightFile and copy_named_tensors
/// (weights.match). Sizes are compared with the weights before the model is allocated, so that a small hostile file
/// cannot allocate much memory.
absl::StatusOr<GPT2Model> load_gpt2(const std::string& folder, const Fs& fs = Fs::posix());

/// Writes config.json and model.safetensors into `folder` for GPT2Model.from_pretrained(folder). Creates the folder if
/// needed; writes each file atomically. kFailedPrecondition if LoRA adapters are neither merged nor removed. Write
/// errors have exit code 6.
absl::Status save_gpt2(const GPT2ModelImpl& model, const std::string& folder, const Fs& fs = Fs::posix());

}  // namespace trainkit
