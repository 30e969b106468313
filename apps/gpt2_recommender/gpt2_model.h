#pragma once
/// Vectors from identities and from what is known: embeddings, GPT-2 over metadata, and a perceptron on top.

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
  int64_t embed_dim = 64;
  /// GPT-2 is not trained, and stays in evaluation mode.
  bool freeze_gpt2 = true;
  /// Keep what GPT-2 makes of each text, (U + I) x n_embd floats, instead of computing it in every step.
  bool use_cache = true;
};

/// The vector of a user (an item) is e + MLP([e; W h]): e its embedding, h the mean of GPT-2's hidden states over the
/// tokens of its text, W a linear layer to embed_dim, and the MLP two linear layers with a ReLU between them. Users and
/// items have an MLP each. The score of a pair is the inner product of its vectors.
///
/// Cache mode: h of all texts is computed once per device, in evaluation mode, at the first use, and again whenever a
/// weight of GPT-2 has changed (a checkpoint that was loaded); the tokens leave the device then. Dynamic mode: h of the
/// texts that a batch names, each once, in every step; with gradients unless GPT-2 is frozen. With a frozen GPT-2 both
/// give the same loss.
class Gpt2Recommender final : public Recommender {
 public:
  /// Registers `gpt2` as "gpt2". `metadata` is shared with other replicas and copied to the model's device when it is
  /// needed. Throws c10::ValueError for use_cache without freeze_gpt2, and if a token is outside GPT-2's vocabulary.
  Gpt2Recommender(GPT2Model gpt2, std::shared_ptr<const Metadata> metadata, const Gpt2RecommenderOptions& options);

  at::Tensor loss(const at::Tensor& users, const at::Tensor& positives, const at::Tensor& negatives) override;
  RankingVectors vectors() override;
  /// A frozen GPT-2 stays in evaluation mode.
  void train(bool on = true) override;

  GPT2Model gpt2() const { return gpt2_; }
  /// Times that the cache was filled.
  int64_t cache_builds() const { return cache_builds_; }
  /// Frees the cache; the next use fills it again.
  void drop_cache() { cache_.reset(); }
  /// From here on dynamic mode, and the cache's memory is free. False if it was that before.
  bool leave_cache_mode();
  /// For recording the memory of a step, soon: from here on GPT-2 reads two chunks of texts where nothing is kept for
  /// backward, which shows what any number takes meanwhile, and its output is not set. Fills the cache so, and returns
  /// it; undefined in dynamic mode.
  at::Tensor read_little();

 private:
  /// GPT-2's mean hidden states of rows of the metadata, (N, n_embd); `rows` (N) int64.
  at::Tensor encode(const at::Tensor& rows);
  at::Tensor encode_chunks(const at::Tensor& rows);
  at::Tensor first_rows(int64_t count) const;
  /// The same for any rows, from the cache or for each different row once.
  at::Tensor hidden_of(const at::Tensor& rows);
  const at::Tensor& cache();
  int64_t encoder_version() const;
  void bring_metadata();

  at::Tensor user_vectors(const at::Tensor& users, const at::Tensor& hidden);
  at::Tensor item_vectors(const at::Tensor& items, const at::Tensor& hidden);

  Gpt2RecommenderOptions options_;
  std::shared_ptr<const Metadata> metadata_;
  GPT2Model gpt2_{nullptr};
  torch::nn::Embedding user_embedding_{nullptr}, item_embedding_{nullptr};
  torch::nn::Linear projection_{nullptr};
  torch::nn::Sequential user_mlp_{nullptr}, item_mlp_{nullptr};
  at::Tensor ids_, mask_;  // of the metadata, on the model's device; undefined while nothing is to be read
  at::Tensor cache_;
  int64_t cached_version_ = -1;
  int64_t cache_builds_ = 0;
  bool reads_little_ = false;
};

}  // namespace trainkit::rec
