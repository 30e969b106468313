#pragma once
/// A decoder-only Transformer like GPT-2, of nanoGPT's size.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace trainkit {

class LayerNormImpl;
class TransformerBlockImpl;
struct PackedDocuments;

struct TransformerConfig {
  /// Rows of the embedding. Ids are 0 .. vocab_size - 1.
  int64_t vocab_size = 0;
  /// Longest sequence, and rows of the position embedding.
  int64_t block_size = 128;
  int64_t n_layers = 6;
  /// Must divide hidden_dim. 0 means default_n_heads(hidden_dim).
  int64_t n_heads = 0;
  int64_t hidden_dim = 512;
  /// Dropout of embeddings, attention weights and residual branches in training. 0 <= dropout < 1.
  double dropout = 0.0;
  /// Biases of linear layers and layer norms. nanoGPT: "a bit better and faster" without.
  bool bias = false;
  /// Use the transposed embedding as the output layer (Press and Wolf 2017, as in GPT-2).
  bool tied_head = true;
};

/// Returns the default number of heads for a width: the largest divisor that is at most 8.
int64_t default_n_heads(int64_t hidden_dim);

/// Checks all fields. One error of exit code 2 (cli.value) lists every field that is out of range.
absl::Status validate(const TransformerConfig& config);

/// Keys and values of the positions that a Transformer has processed. With it, new positions cost only their own work.
struct KeyValueCache {
  /// One tensor per layer, (B, heads, block_size, C / heads); the first `length` positions are filled. The first
  /// forward allocates them.
  std::vector<at::Tensor> keys = {};
  std::vector<at::Tensor> values = {};
  int64_t length = 0;
};

/// Maps token ids to logits of the next token.
///
///   Transformer model(TransformerConfig{.vocab_size = 65, .block_size = 64, .n_layers = 4, .n_heads = 4,
///                                       .hidden_dim = 128});
///   at::Tensor loss = model->loss(x, y);   // x, y: (B, T) int64
///
/// Pre-norm blocks, learned positions, exact GELU. Initialised as nanoGPT: normal(0, 0.02), projections into the
/// residual stream normal(0, 0.02 / sqrt(2 n_layers)), biases 0. Parameters have nanoGPT's names and shapes
/// ("transformer.h.0.attn.c_attn.weight" is (3C, C)). With a tied head there is no "lm_head.weight". Source:
/// https://github.com/karpathy/nanoGPT/blob/master/model.py
class TransformerImpl : public torch::nn::Module {
 public:
  /// Throws c10::ValueError with the text of validate() if the configuration is invalid.
  explicit TransformerImpl(TransformerConfig config);

  /// @param ids (B, T) int64, 1 <= T <= block_size.
  /// @param document_positions (B, T) int64: position of each token in its document, 0 at the first token of each, for
  /// rows that pack several documents. A token then attends to its own document only, and its position embedding
  /// counts from the document's start; the logits of a document are those of the document alone. Undefined: each row is
  /// one document.
  /// @return logits (B, T, vocab_size).
  at::Tensor forward(const at::Tensor& ids, const at::Tensor& document_positions = {});

  /// Returns the mean cross-entropy of the logits of forward(ids, document_positions) with `targets`, (B, T) int64,
  /// over the targets other than kIgnoreIndex. Equal to language_model_loss(forward(...), targets) within rounding, but
  /// without the logits of all positions at once (linear_cross_entropy). Scalar, float32.
  at::Tensor loss(const at::Tensor& ids, const at::Tensor& targets, const at::Tensor& document_positions = {});

  /// Returns the logits of `ids` (B, T) as the continuation of `cache`, and appends them to it. Equal to forward() of
  /// the whole sequence, without recomputing it. No gradients. Throws if cache.length + T exceeds block_size; start
  /// with an empty cache then, since every position changes.
  at::Tensor forward(const at::Tensor& ids, KeyValueCache& cache);

  /// Keep only the input of each block for backward and recompute the rest there (nn/activation_checkpoint.h). The
  /// gradients are the same, with less memory and about a third more time.
  void set_gradient_checkpointing(bool on) { gradient_checkpointing_ = on; }
  bool gradient_checkpointing() const { return gradient_checkpointing_; }
  /// Like set_gradient_checkpointing for `segments` segments of blocks; all but the last are recomputed
  /// (checkpoint_sequential). 1 disables it. Throws c10::ValueError unless 1 <= segments <= n_layers.
  void set_checkpoint_segments(int64_t segments);

  /// Compute each block and the last norm with fused kernels where they apply. Enabled by default. On the CPU a block
  /// is one autograd node with its own backward; it requires float32 or autocast to bfloat16, no dropout, and head
  /// widths that are multiples of 16. On CUDA residual and layer norm are one operation, and so are bias and GELU, in
  /// float32, bfloat16 and float16. Results equal those of the separate operations within rounding. Only the separate
  /// operations have a second derivative.
  void set_fused_blocks(bool on);

  /// Configuration with n_heads filled in.
  const TransformerConfig& config() const { return config_; }
  /// Total number of elements of all parameters.
  int64_t num_parameters() const;

 private:
  void initialise();
  at::Tensor position_rows(const at::Tensor& ids, int64_t first);
  at::Tensor embed(const at::Tensor& ids, const at::Tensor& positions);
  at::Tensor hidden_states(const at::Tensor& ids, const at::Tensor& document_positions);
  at::Tensor logits(const at::Tensor& hidden);
  at::Tensor final_norm(const at::Tensor& x, const at::Tensor& branch = {});
  at::Tensor run_blocks(const at::Tensor& x, const std::shared_ptr<const PackedDocuments>& documents);

  TransformerConfig config_;
  bool fused_ = true;
  bool gradient_checkpointing_ = false;
  int64_t checkpoint_segments_ = 1;
  torch::nn::Embedding wte_{nullptr};
  torch::nn::Embedding wpe_{nullptr};
  std::vector<std::shared_ptr<TransformerBlockImpl>> blocks_;
  std::shared_ptr<LayerNormImpl> ln_f_;
  torch::nn::Linear lm_head_{nullptr};  // null if tied
};
TORCH_MODULE(Transformer);

/// Target value that is ignored; the default of torch.
inline constexpr int64_t kIgnoreIndex = -100;

/// Returns the mean cross-entropy in nats over the targets other than kIgnoreIndex. logits (B, T, V), targets (B, T)
/// int64.
at::Tensor language_model_loss(const at::Tensor& logits, const at::Tensor& targets);

struct GenerateOptions {
  int64_t max_tokens = 200;
  /// Sampling temperature. Lower is more deterministic; 0 takes the most probable token.
  double temperature = 0.8;
  /// Sample only from the k most probable tokens; 0 samples from all. nanoGPT's sample.py: 200.
  int64_t top_k = 200;
  uint64_t seed = 0;
  /// Tokens dropped at once when the context reaches block_size. All positions then change, and the remaining context
  /// is recomputed. 1 keeps the longest context and recomputes it for every token; 0 means half of block_size.
  int64_t slide = 0;
};

/// Continues `prompt`. The context is the last tokens: at most block_size and, once it has been full, at least
/// block_size + 1 - slide. A KeyValueCache keeps the context, so a new token costs one position. Switches the model to
/// evaluation mode during the call. The same seed gives the same tokens on one type of device. Synchronises the device
/// once per token. Throws c10::ValueError if the prompt is empty or an option is out of range, c10::IndexError for an
/// id outside the vocabulary. @return only the new tokens.
std::vector<int64_t> generate(Transformer& model, const std::vector<int64_t>& prompt,
                              const GenerateOptions& options = {});

/// Returns the logits (1, T, V) of the tokens that follow each of `ids`, (1, T) int64 on the CPU.
using TokenLogits = std::function<at::Tensor(const at::Tensor& ids)>;

/// The same with any model: `logits` computes the last `context` tokens anew for each token; `slide` is not used. The
/// caller sets the model to evaluation mode and disables gradients.
std::vector<int64_t> generate(const TokenLogits& logits, const std::vector<int64_t>& prompt, int64_t context,
                              const GenerateOptions& options = {});

}  // namespace trainkit
