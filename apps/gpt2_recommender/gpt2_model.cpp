#include "gpt2_recommender/gpt2_model.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/activation.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "trainkit/core/evaluation_mode.h"
#include "trainkit/nn/functional.h"

namespace trainkit::rec {
namespace {

constexpr int64_t kTextChunk = 32;  // texts per pass of GPT-2 without gradients
constexpr int64_t kVectorChunk = 4096;

/// The last layer starts at zero: a new model ranks by its embeddings alone, as BprMf does.
torch::nn::Sequential make_mlp(int64_t dim) {
  torch::nn::Linear last(dim, dim);
  torch::nn::init::zeros_(last->weight);
  torch::nn::init::zeros_(last->bias);
  return torch::nn::Sequential(torch::nn::Linear(dim, dim), torch::nn::ReLU(), last);
}

torch::nn::Embedding make_embedding(int64_t rows, int64_t dim, bool sparse) {
  torch::nn::Embedding table(torch::nn::EmbeddingOptions(rows, dim).sparse(sparse));
  torch::nn::init::xavier_normal_(table->weight);  // as in BprMf
  return table;
}

}  // namespace

Gpt2Recommender::Gpt2Recommender(GPT2Model gpt2, std::shared_ptr<const Metadata> metadata,
                                 const Gpt2RecommenderOptions& options)
    : Recommender("Gpt2Recommender"), options_(options), metadata_(std::move(metadata)) {
  const GPT2Config& config = gpt2->config();
  TORCH_CHECK_VALUE(options.freeze_gpt2 || !options.use_cache, "a cache of GPT-2's output needs a frozen GPT-2");
  TORCH_CHECK_VALUE(metadata_->vocab_size <= config.vocab_size, "the texts need a vocabulary of ",
                    metadata_->vocab_size, ", GPT-2 has ", config.vocab_size);
  TORCH_CHECK_VALUE(metadata_->max_tokens() <= config.n_positions, "the texts have up to ", metadata_->max_tokens(),
                    " tokens, GPT-2 has ", config.n_positions, " positions");
  const int64_t dim = options.embed_dim, num_users = metadata_->num_users;
  user_embedding_ = register_module("user_embedding", make_embedding(num_users, dim, options.sparse));
  item_embedding_ =
      register_module("item_embedding", make_embedding(metadata_->rows() - num_users, dim, options.sparse));
  gpt2_ = register_module("gpt2", std::move(gpt2));
  projection_ = register_module("projection", torch::nn::Linear(config.n_embd, dim));
  user_mlp_ = register_module("user_mlp", make_mlp(dim));
  item_mlp_ = register_module("item_mlp", make_mlp(dim));
  if (options.freeze_gpt2) {
    for (at::Tensor& parameter : gpt2_->parameters()) parameter.requires_grad_(false);
  }
  train(true);
}

void Gpt2Recommender::train(bool on) {
  Recommender::train(on);
  if (options_.freeze_gpt2) gpt2_->train(false);
}

void Gpt2Recommender::move_metadata_to_device() {
  const at::Device device = projection_->weight.device();
  if (ids_.defined() && ids_.device() == device) return;
  ids_ = metadata_->ids.to(device);
  mask_ = metadata_->mask.to(device);
}

at::Tensor Gpt2Recommender::encode(const at::Tensor& rows) {
  const at::Tensor mask = mask_.index_select(0, rows);
  const at::Tensor hidden = gpt2_->forward(ids_.index_select(0, rows), mask);
  const at::Tensor weights = mask.to(hidden.scalar_type()).unsqueeze(2);
  return (hidden * weights).sum(1) / weights.sum(1);
}

at::Tensor Gpt2Recommender::first_rows(int64_t count) const {
  return at::arange(count, at::TensorOptions(projection_->weight.device()).dtype(at::kLong));
}

at::Tensor Gpt2Recommender::encode_chunks(const at::Tensor& rows) {
  const c10::AutoGradMode no_grad(false);
  at::Tensor all;
  const auto encode_some = [&](int64_t begin, const at::Tensor& some) {
    const at::Tensor hidden = encode(some);
    if (!all.defined()) all = at::empty({rows.size(0), hidden.size(1)}, hidden.options());
    const int64_t size = std::min(hidden.size(0), rows.size(0) - begin);
    all.narrow(0, begin, size).copy_(hidden.narrow(0, 0, size));
  };
  if (records_memory_) {
    const at::Tensor any = at::zeros({std::min(kTextChunk, metadata_->rows())}, rows.options());
    encode_some(0, any.narrow(0, 0, 1));  // allocates the output
    encode_some(0, any);
    return all;
  }
  for (int64_t begin = 0; begin < rows.size(0); begin += kTextChunk) {
    encode_some(begin, rows.narrow(0, begin, std::min(kTextChunk, rows.size(0) - begin)));
  }
  return all;
}

int64_t Gpt2Recommender::encoder_version() const {
  int64_t version = 0;
  for (const at::Tensor& parameter : gpt2_->parameters()) version += parameter._version() + 1;
  return version;
}

// See Note [Cache of GPT-2's output].
const at::Tensor& Gpt2Recommender::cache() {
  const int64_t version = encoder_version();
  if (!cache_.defined() || cache_.device() != projection_->weight.device() || version != cached_version_) {
    cache_.reset();
    move_metadata_to_device();
    cache_ = encode_chunks(first_rows(metadata_->rows()));
    ids_.reset();
    mask_.reset();
    cached_version_ = version;
    ++cache_builds_;
  }
  return cache_;
}

bool Gpt2Recommender::leave_cache_mode() {
  cache_.reset();
  return std::exchange(options_.use_cache, false);
}

at::Tensor Gpt2Recommender::fill_cache_for_recording() {
  records_memory_ = true;
  return options_.use_cache ? cache() : at::Tensor();
}

at::Tensor Gpt2Recommender::hidden_of(const at::Tensor& rows) {
  if (options_.use_cache) return cache().index_select(0, rows);
  move_metadata_to_device();
  const auto [distinct, where, counts] = at::_unique2(rows, /*sorted=*/true, /*return_inverse=*/true);
  const bool no_gradients = options_.freeze_gpt2 || !c10::GradMode::is_enabled();
  const at::Tensor hidden = no_gradients ? encode_chunks(distinct) : encode(distinct);
  return hidden.index_select(0, where);
}

at::Tensor Gpt2Recommender::from_text(torch::nn::SequentialImpl& mlp, const at::Tensor& hidden) {
  return mlp.forward(projection_->forward(hidden)) / static_cast<double>(options_.embed_dim);
}

at::Tensor Gpt2Recommender::user_vectors(const at::Tensor& users, const at::Tensor& hidden) {
  const at::Tensor own = trainkit::embedding_lookup(users, user_embedding_->weight, options_.sparse);
  return own + from_text(*user_mlp_, hidden);
}

at::Tensor Gpt2Recommender::item_vectors(const at::Tensor& items, const at::Tensor& hidden) {
  const at::Tensor own = trainkit::embedding_lookup(items, item_embedding_->weight, options_.sparse);
  return own + from_text(*item_mlp_, hidden);
}

at::Tensor Gpt2Recommender::loss(const at::Tensor& users, const at::Tensor& positives, const at::Tensor& negatives) {
  const int64_t n = users.size(0);
  const at::Tensor items = at::cat({positives, negatives});
  const at::Tensor hidden = hidden_of(at::cat({users, items + metadata_->num_users}));
  const at::Tensor user = user_vectors(users, hidden.narrow(0, 0, n));
  const at::Tensor item = item_vectors(items, hidden.narrow(0, n, 2 * n));
  return bpr_loss((user * item.narrow(0, 0, n)).sum(1), (user * item.narrow(0, n, n)).sum(1));
}

RankingVectors Gpt2Recommender::vectors() {
  const c10::AutoGradMode no_grad(false);
  const trainkit::EvaluationMode evaluation(*this);
  const int64_t num_users = metadata_->num_users, num_items = metadata_->rows() - num_users;
  std::vector<at::Tensor> users, items;
  for (const at::Tensor& rows : first_rows(num_users).split(kVectorChunk)) {
    users.push_back(user_vectors(rows, hidden_of(rows)));
  }
  for (const at::Tensor& rows : first_rows(num_items).split(kVectorChunk)) {
    items.push_back(item_vectors(rows, hidden_of(rows + num_users)));
  }
  return {at::cat(users), at::cat(items)};
}

}  // namespace trainkit::rec
