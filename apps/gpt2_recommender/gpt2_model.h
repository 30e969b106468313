#pragma once
/// Defines the GPT-2 recommender: embeddings, GPT-2 over the texts of users and items, and an MLP on top.

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "gpt2_recommender/metadata.h"
#include "gpt2_recommender/models.h"
#include "trainkit/nn/gpt2.h"

namespace trainkit::rec {

struct Gpt2RecommenderOptions {
  /// Length of the vectors.
  int64_t embed_dim = 64;
  /// Do not train GPT-2; it stays in evaluation mode.
  bool freeze_gpt2 = true;
  /// Cache GPT-2's output for each text, (U + I) x n_embd floats, instead of computing it in every step.
  bool use_cache = true;
  /// Sparse gradients of the embeddings of users and items, for SparseAdam.
  bool sparse = false;
};

/// Computes the vector of a user or an item as e + MLP(W h) / embed_dim. e is its embedding, h the mean of GPT-2's
/// hidden states over the tokens of its text, and W a linear layer to embed_dim. The MLP has two linear layers with a
/// ReLU between them; users and items have separate MLPs. The score of a pair is the inner product of its vectors.
///
/// The MLP's last layer starts at zero. The division by embed_dim makes a step of Adam move the text's part about as
/// far as an embedding: each output sums embed_dim inputs, and every weight moves by about lr (the output multiplier of
/// Yang et al. 2022, arXiv:2203.03466). Without it the texts fit the training pairs before the embeddings do.
///
/// Cache mode (use_cache): h of all texts is computed once per device. See Note [Cache of GPT-2's output].
/// Dynamic mode: every step computes h of the distinct texts of its batch, with gradients unless GPT-2 is frozen.
/// With a frozen GPT-2 both modes give the same loss.
//
// Note [Cache of GPT-2's output]
//
// cache() fills the cache at the first use and whenever encoder_version() or the device has changed. encoder_version()
// sums the version counters of GPT-2's parameters, which every in-place write increments: a loaded checkpoint is
// noticed without a call from outside. Each counter adds 1 more, so that an added or removed parameter changes the sum
// too. GPT-2 is frozen and in evaluation mode, without dropout, so the cached values equal computed ones. The token ids
// are needed only to fill the cache. They leave the device afterwards and are copied again when needed.
class Gpt2Recommender final : public Recommender {
 public:
  /// Registers `gpt2` as "gpt2". Replicas share `metadata`; it is copied to the model's device when needed. Throws
  /// c10::ValueError for use_cache without freeze_gpt2, and if GPT-2's vocabulary or positions are too few for the
  /// texts.
  Gpt2Recommender(GPT2Model gpt2, std::shared_ptr<const Metadata> metadata, const Gpt2RecommenderOptions& options);

  at::Tensor loss(const at::Tensor& users, const at::Tensor& positives, const at::Tensor& negatives) override;
  RankingVectors vectors() override;
  /// Sets the training mode. A frozen GPT-2 stays in evaluation mode.
  void train(bool on = true) override;

  GPT2Model gpt2() const { return gpt2_; }
  /// Number of times that the cache was filled.
  int64_t cache_builds() const { return cache_builds_; }
  /// Frees the cache. The next use fills it again.
  void drop_cache() { cache_.reset(); }
  /// Switches to dynamic mode and frees the cache. Returns false if the model was in dynamic mode already.
  bool leave_cache_mode();
  /// Prepares the model for recording the memory of a step quickly. From here on, passes of GPT-2 without gradients
  /// read only two chunks of texts: enough for the peak of any number of chunks, but the output is not valid. Fills the
  /// cache this way and returns it; undefined in dynamic mode.
  at::Tensor fill_cache_for_recording();

 private:
  /// Mean hidden states (N, n_embd) of GPT-2 for rows (N) int64 of the metadata.
  at::Tensor encode(const at::Tensor& rows);
  /// The same without gradients, kTextChunk rows at a time.
  at::Tensor encode_chunks(const at::Tensor& rows);
  /// 0 to count - 1, (count) int64 on the model's device.
  at::Tensor first_rows(int64_t count) const;
  /// Hidden states of any rows: from the cache, or computed once per distinct row.
  at::Tensor hidden_of(const at::Tensor& rows);
  const at::Tensor& cache();
  int64_t encoder_version() const;
  void move_metadata_to_device();

  /// The part of the vectors that comes from the texts, for their hidden states (N, n_embd).
  at::Tensor from_text(torch::nn::SequentialImpl& mlp, const at::Tensor& hidden);
  at::Tensor user_vectors(const at::Tensor& users, const at::Tensor& hidden);
  at::Tensor item_vectors(const at::Tensor& items, const at::Tensor& hidden);

  Gpt2RecommenderOptions options_;
  std::shared_ptr<const Metadata> metadata_;
  GPT2Model gpt2_{nullptr};
  torch::nn::Embedding user_embedding_{nullptr}, item_embedding_{nullptr};
  torch::nn::Linear projection_{nullptr};
  torch::nn::Sequential user_mlp_{nullptr}, item_mlp_{nullptr};
  at::Tensor ids_, mask_;  // metadata on the model's device; undefined while not needed
  at::Tensor cache_;
  int64_t cached_version_ = -1;
  int64_t cache_builds_ = 0;
  bool records_memory_ = false;
};

}  // namespace trainkit::rec
