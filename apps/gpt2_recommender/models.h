#pragma once
/// Declares the recommender models.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gpt2_recommender/bpr.h"
#include "trainkit/distributed/device_replicator.h"

namespace trainkit::rec {

/// Vectors of users and items, on the model's device.
struct RankingVectors {
  at::Tensor users;  ///< (U, D)
  at::Tensor items;  ///< (I, D)
};

/// Scores a pair of a user and an item by the inner product of their vectors.
class Recommender : public torch::nn::Module {
 public:
  explicit Recommender(std::string name) : torch::nn::Module(std::move(name)) {}

  /// Returns the scalar BPR loss of triplets, each (N) int64: the mean over the rows.
  virtual at::Tensor loss(const at::Tensor& users, const at::Tensor& positives, const at::Tensor& negatives) = 0;

  /// Returns all vectors for a ranking, without gradients and in evaluation mode.
  virtual RankingVectors vectors() = 0;
};

/// Matrix factorisation: the vectors are the parameters, initialised with Xavier normal.
/// Source: RecBole 1.2.1, recbole/model/general_recommender/bpr.py, with the same initialisation.
class BprMf final : public Recommender, public HasSparseGradients {
 public:
  /// With `sparse` the gradients of both tables are sparse, for SparseAdam.
  BprMf(int64_t num_users, int64_t num_items, int64_t embed_dim, bool sparse = false);
  at::Tensor loss(const at::Tensor& users, const at::Tensor& positives, const at::Tensor& negatives) override;
  RankingVectors vectors() override;
  std::vector<at::Tensor> sparse_parameters() const override;

 private:
  bool sparse_;
  at::Tensor user_embedding_, item_embedding_;
  GradientBuffers buffers_;
};

}  // namespace trainkit::rec
