// The recommender with GPT-2 for texts about users and items.
#include <ATen/ATen.h>
#include <torch/utils.h>

#include <catch2/catch.hpp>

#include "gpt2_recommender/gpt2_model.h"
#include "gpt2_recommender/metadata.h"
#include "test_util.h"
#include "trainkit/optim/optimizer.h"

using namespace trainkit;
using namespace trainkit::rec;

namespace {

Interactions described() {
  Interactions data;
  for (int i = 0; i < 9; ++i)
    data.users.push_back({std::to_string(i), i == 3 ? "" : "male, age " + std::to_string(20 + i)});
  for (int i = 0; i < 14; ++i) data.items.push_back({std::to_string(i), "Film " + std::string(1 + i % 5, 'a' + i)});
  return data;
}

std::shared_ptr<const Metadata> metadata_of(const Interactions& data, int64_t max_tokens = 12) {
  TokenId empty = 0;
  const auto tokenizer = metadata_tokenizer(data, "", empty).value();
  return std::make_shared<const Metadata>(tokenize_metadata(data, *tokenizer, max_tokens, empty).value());
}

std::shared_ptr<Gpt2Recommender> make_model(const Gpt2RecommenderOptions& options, uint64_t seed = 1) {
  torch::manual_seed(seed);
  const auto metadata = metadata_of(described());
  GPT2Model gpt2(GPT2Config{.vocab_size = metadata->vocab_size,
                            .n_positions = 16,
                            .n_embd = 24,
                            .n_layer = 2,
                            .n_head = 3,
                            .initializer_range = 0.2});
  auto model = std::make_shared<Gpt2Recommender>(gpt2, metadata, options);
  const c10::NoGradGuard guard;
  for (const auto& parameter : model->named_parameters()) {  // the texts count, as after some steps
    if (parameter.key().find("_mlp.2.") != std::string::npos) parameter.value().normal_();
  }
  return model;
}

struct TokenBatch {
  at::Tensor users = at::tensor(at::ArrayRef<int64_t>{0, 3, 8, 3, 5, 0}),
             positives = at::tensor(at::ArrayRef<int64_t>{1, 13, 0, 2, 2, 7}),
             negatives = at::tensor(at::ArrayRef<int64_t>{4, 4, 12, 13, 0, 1});
};

double loss_of(Gpt2Recommender& model) {
  const TokenBatch b;
  return model.loss(b.users, b.positives, b.negatives).item<double>();
}

}  // namespace

TEST_CASE("Texts are tokenized, truncated and padded; an empty text has one token", "[apps][rec]") {
  const Interactions data = described();
  const auto metadata = metadata_of(data, 7);
  CHECK(metadata->ids.sizes() == at::IntArrayRef({23, 7}));
  CHECK(metadata->num_users == 9);
  const at::Tensor lengths = metadata->mask.sum(1);
  CHECK(lengths[0].item<int64_t>() == 7);  // "male, age 20" is truncated
  CHECK(lengths[3].item<int64_t>() == 1);  // an empty text
  CHECK(lengths[9].item<int64_t>() == 6);  // "Film a"
  CHECK(metadata->ids.mul(1 - metadata->mask).abs().sum().item<int64_t>() == 0);
  CHECK(metadata->ids.max().item<int64_t>() < metadata->vocab_size);
}

TEST_CASE("A new model ranks by its embeddings alone; a step of training brings in the texts", "[apps][rec]") {
  torch::manual_seed(1);
  const auto metadata = metadata_of(described());
  const GPT2Model gpt2(
      GPT2Config{.vocab_size = metadata->vocab_size, .n_positions = 16, .n_embd = 24, .n_layer = 1, .n_head = 3});
  Gpt2Recommender model(gpt2, metadata, {.embed_dim = 8});
  const auto embeddings = [&] { return model.named_parameters()["item_embedding.weight"]; };
  CHECK(at::equal(model.vectors().items, embeddings()));
  const TokenBatch b;
  model.loss(b.users, b.positives, b.negatives).backward();
  const c10::NoGradGuard guard;
  for (const NamedParameter& parameter : trainable_parameters(model)) {
    if (parameter.tensor.grad().defined()) parameter.tensor.sub_(parameter.tensor.grad());
  }
  CHECK_FALSE(at::allclose(model.vectors().items, embeddings()));
}

TEST_CASE("Cache mode and dynamic mode give the same loss and vectors with a frozen encoder", "[apps][rec]") {
  const auto cached = make_model({.embed_dim = 8}), dynamic = make_model({.embed_dim = 8, .use_cache = false});
  CHECK(loss_of(*cached) == Approx(loss_of(*dynamic)).margin(1e-6).epsilon(0));
  CHECK(cached->cache_builds() == 1);
  CHECK(dynamic->cache_builds() == 0);
  const RankingVectors a = cached->vectors(), b = dynamic->vectors();
  CHECK(at::allclose(a.users, b.users, 1e-5, 1e-6));
  CHECK(at::allclose(a.items, b.items, 1e-5, 1e-6));
  CHECK(cached->cache_builds() == 1);
  // The loss equals the one computed from the vectors.
  const TokenBatch batch;
  const at::Tensor u = a.users.index_select(0, batch.users);
  const at::Tensor margin =
      (u * (a.items.index_select(0, batch.positives) - a.items.index_select(0, batch.negatives))).sum(1);
  CHECK(loss_of(*cached) == Approx((-at::log_sigmoid(margin)).mean().item<double>()).epsilon(1e-5));
}

TEST_CASE("The cache is filled again if and only if a weight of the encoder changes", "[apps][rec]") {
  const auto model = make_model({.embed_dim = 8});
  const double before = loss_of(*model);
  {
    const c10::NoGradGuard guard;
    model->named_parameters()["projection.bias"].add_(0.0);
  }
  loss_of(*model);
  CHECK(model->cache_builds() == 1);
  {
    const c10::NoGradGuard guard;
    model->named_parameters()["gpt2.wte.weight"].mul_(1.5);
  }
  const double after = loss_of(*model);
  CHECK(model->cache_builds() == 2);
  CHECK(after != before);
  model->drop_cache();
  CHECK(loss_of(*model) == after);
  CHECK(model->cache_builds() == 3);
}

TEST_CASE("A frozen encoder is not trained and has no dropout; a trainable one has gradients", "[apps][rec]") {
  const TokenBatch b;
  const auto frozen = make_model({.embed_dim = 8, .use_cache = false});
  frozen->train();
  CHECK_FALSE(frozen->gpt2()->is_training());
  CHECK(loss_of(*frozen) == loss_of(*frozen));
  frozen->loss(b.users, b.positives, b.negatives).backward();
  for (const auto& parameter : frozen->named_parameters()) {
    INFO(parameter.key());
    CHECK(parameter.value().grad().defined() != parameter.key().starts_with("gpt2."));
  }
  for (const auto& parameter : trainable_parameters(*frozen)) CHECK_FALSE(parameter.name.starts_with("gpt2."));

  const auto trained = make_model({.embed_dim = 8, .freeze_gpt2 = false, .use_cache = false});
  trained->train();
  CHECK(trained->gpt2()->is_training());
  trained->eval();
  CHECK(loss_of(*trained) == Approx(loss_of(*frozen)).margin(1e-6));
  trained->loss(b.users, b.positives, b.negatives).backward();
  const at::Tensor gradient = trained->named_parameters()["gpt2.h.0.attn.c_attn.weight"].grad();
  REQUIRE(gradient.defined());
  CHECK(gradient.abs().sum().item<double>() > 0);
}

TEST_CASE("A cache without a frozen encoder and texts of the wrong length are errors", "[apps][rec]") {
  CHECK_THROWS_AS(make_model({.freeze_gpt2 = false, .use_cache = true}), c10::ValueError);
  const auto metadata = metadata_of(described());
  GPT2Config config{.vocab_size = metadata->vocab_size, .n_positions = 4, .n_embd = 24, .n_layer = 1, .n_head = 3};
  CHECK_THROWS_AS(Gpt2Recommender(GPT2Model(config), metadata, {}), c10::ValueError);
  config.n_positions = 16;
  config.vocab_size = 3;
  CHECK_THROWS_AS(Gpt2Recommender(GPT2Model(config), metadata, {}), c10::ValueError);
}
