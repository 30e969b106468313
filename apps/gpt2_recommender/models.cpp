#include "gpt2_recommender/models.h"

#include <torch/nn/init.h>

namespace trainkit::rec {

BprMf::BprMf(int64_t num_users, int64_t num_items, int64_t embed_dim, bool sparse)
    : Recommender("BprMf"), sparse_(sparse) {
  const auto table = [&](const char* name, int64_t rows) {
    return register_parameter(name, torch::nn::init::xavier_normal_(torch::empty({rows, embed_dim})));
  };
  user_embedding_ = table("user_embedding", num_users);
  item_embedding_ = table("item_embedding", num_items);
}

at::Tensor BprMf::loss(const at::Tensor& users, const at::Tensor& positives, const at::Tensor& negatives) {
  return bpr_loss(user_embedding_, item_embedding_, users, positives, negatives, buffers_, sparse_);
}

std::vector<at::Tensor> BprMf::sparse_parameters() const {
  return sparse_ ? std::vector<at::Tensor>{user_embedding_, item_embedding_} : std::vector<at::Tensor>();
}

RankingVectors BprMf::vectors() { return {user_embedding_.detach(), item_embedding_.detach()}; }

}  // namespace trainkit::rec
