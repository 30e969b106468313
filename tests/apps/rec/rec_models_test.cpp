// The BPR loss and the models that use it.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/utils.h>

#include <catch2/catch.hpp>

#include "gpt2_recommender/bpr.h"
#include "gpt2_recommender/models.h"
#include "test_util.h"

using namespace trainkit;
using namespace trainkit::rec;

namespace {

struct TripletBatch {
  at::Tensor users, positives, negatives;
};

TripletBatch make_batch(int64_t rows, int64_t users, int64_t items) {
  return {at::randint(users, {rows}, at::kLong), at::randint(items, {rows}, at::kLong),
          at::randint(items, {rows}, at::kLong)};
}

/// The loss in plain LibTorch operations.
at::Tensor plain_loss(const at::Tensor& user_table, const at::Tensor& item_table, const TripletBatch& b) {
  const at::Tensor u = user_table.index_select(0, b.users);
  const at::Tensor difference = item_table.index_select(0, b.positives) - item_table.index_select(0, b.negatives);
  return -at::log_sigmoid((u * difference).sum(1)).mean();
}

}  // namespace

TEST_CASE("bpr_loss and its gradients equal LibTorch's operations", "[apps][rec]") {
  torch::manual_seed(1);
  for (const int64_t dim : {1, 7, 16, 64, 100}) {
    for (const int64_t rows : {1, 33, 1000}) {
      INFO(dim << " " << rows);
      const at::Tensor user_table = at::randn({50, dim}), item_table = at::randn({40, dim});
      const TripletBatch batch = make_batch(rows, 50, 40);
      const at::Tensor ours[2] = {user_table.clone().requires_grad_(), item_table.clone().requires_grad_()};
      const at::Tensor theirs[2] = {user_table.to(at::kDouble).requires_grad_(),
                                    item_table.to(at::kDouble).requires_grad_()};
      GradientBuffers buffers;
      const at::Tensor loss = bpr_loss(ours[0], ours[1], batch.users, batch.positives, batch.negatives, buffers);
      const at::Tensor expected = plain_loss(theirs[0], theirs[1], batch);
      CHECK(loss.item<double>() == Approx(expected.item<double>()).epsilon(1e-5));
      (loss * 3).backward();
      (expected * 3).backward();
      for (int i : {0, 1}) {
        const at::Tensor& gradient = ours[i].grad();
        CHECK(at::allclose(gradient.to(at::kDouble), theirs[i].grad(), 1e-5, 1e-7));
        // Rows without a triplet are zero, whatever the memory held before.
        CHECK(gradient.abs().sum(1).eq(0).equal(theirs[i].grad().abs().sum(1).eq(0)));
      }
    }
  }
}

TEST_CASE("Sparse gradients of bpr_loss have the rows of the batch, with the bits of the dense ones", "[apps][rec]") {
  torch::manual_seed(6);
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const at::Tensor user_table = at::randn({500, 33}, dtype), item_table = at::randn({400, 33}, dtype);
    const TripletBatch batch = make_batch(300, 500, 400);
    GradientBuffers buffers;
    std::vector<at::Tensor> gradients;
    for (const bool sparse : {false, true}) {
      const at::Tensor u = user_table.clone().requires_grad_(), v = item_table.clone().requires_grad_();
      (2 * bpr_loss(u, v, batch.users, batch.positives, batch.negatives, buffers, sparse)).backward();
      gradients.insert(gradients.end(), {u.grad(), v.grad()});
    }
    for (size_t i : {0, 1}) {
      REQUIRE(gradients[i + 2].is_sparse());
      const at::Tensor dense = gradients[i + 2].to_dense();
      CHECK((dtype == at::kFloat ? dense.equal(gradients[i]) : at::allclose(dense, gradients[i])));
    }
    const int64_t users = std::get<0>(at::_unique(batch.users)).numel();
    CHECK(gradients[2].coalesce()._nnz() == users);
    if (dtype == at::kFloat) CHECK(gradients[2]._nnz() == users);  // each row once
  }
}

TEST_CASE("Large margins neither overflow nor vanish", "[apps][rec]") {
  const at::Tensor users = at::full({1, 2}, 100.0f).requires_grad_(), items = at::zeros({2, 2});
  items[0] = 100.0f;
  items.requires_grad_();
  GradientBuffers buffers;
  const at::Tensor zero = at::zeros({1}, at::kLong), one = at::ones({1}, at::kLong);
  CHECK(bpr_loss(users, items, zero, zero, one, buffers).item<float>() == 0);
  const at::Tensor wrong = bpr_loss(users, items, zero, one, zero, buffers);
  CHECK(wrong.item<float>() == 20000);
  wrong.backward();
  CHECK(items.grad()[0][0].item<float>() == 100);
}

TEST_CASE("Gradients of bpr_loss do not depend on the number of threads", "[apps][rec]") {
  torch::manual_seed(2);
  const at::Tensor user_table = at::randn({3000, 64}), item_table = at::randn({2000, 64});
  const TripletBatch batch = make_batch(2048, 3000, 2000);
  const auto gradients = [&](int threads) {
    at::set_num_threads(threads);
    const at::Tensor u = user_table.clone().requires_grad_(), v = item_table.clone().requires_grad_();
    GradientBuffers buffers;
    bpr_loss(u, v, batch.users, batch.positives, batch.negatives, buffers).backward();
    return std::pair(u.grad().clone(), v.grad().clone());
  };
  const int threads = at::get_num_threads();
  const auto one = gradients(1), three = gradients(3);
  at::set_num_threads(threads);
  CHECK(one.first.equal(three.first));
  CHECK(one.second.equal(three.second));
}

TEST_CASE("Gradient memory is reused once it is free, and never while it is in use", "[apps][rec]") {
  torch::manual_seed(3);
  const at::Tensor u = at::randn({50, 8}).requires_grad_(), v = at::randn({40, 8}).requires_grad_();
  GradientBuffers buffers;
  const auto step = [&] {
    const TripletBatch b = make_batch(20, 50, 40);
    bpr_loss(u, v, b.users, b.positives, b.negatives, buffers).backward();
    const at::Tensor gradient = u.grad();
    u.mutable_grad().reset();
    v.mutable_grad().reset();
    return gradient;
  };
  const void* first = step().const_data_ptr();
  CHECK(step().const_data_ptr() == first);
  const at::Tensor held = step();
  const at::Tensor copy = held.clone();
  CHECK(step().const_data_ptr() != held.const_data_ptr());
  step();
  CHECK(held.equal(copy));
}

TEST_CASE("Indices out of range are errors, and double tables use LibTorch's operations", "[apps][rec]") {
  const at::Tensor u = at::randn({5, 8}), v = at::randn({4, 8});
  GradientBuffers buffers;
  const at::Tensor good = at::zeros({1}, at::kLong), bad = at::full({1}, 5, at::kLong);
  CHECK_THROWS_AS(bpr_loss(u, v, bad, good, good, buffers), c10::IndexError);
  CHECK_THROWS_AS(bpr_loss(u, v, good, bad, good, buffers), c10::IndexError);
  CHECK_THROWS_AS(bpr_loss(u, v, good, good, -bad, buffers), c10::IndexError);
  const TripletBatch batch = make_batch(9, 5, 4);
  const at::Tensor du = u.to(at::kDouble), dv = v.to(at::kDouble);
  CHECK(bpr_loss(du, dv, batch.users, batch.positives, batch.negatives, buffers).item<double>() ==
        Approx(plain_loss(du, dv, batch).item<double>()));
}

TEST_CASE("The vectors of BprMf give its loss", "[apps][rec]") {
  torch::manual_seed(4);
  BprMf model(50, 40, 16);
  const TripletBatch batch = make_batch(30, 50, 40);
  const RankingVectors vectors = model.vectors();
  CHECK(vectors.users.sizes() == at::IntArrayRef({50, 16}));
  CHECK(model.loss(batch.users, batch.positives, batch.negatives).item<float>() ==
        Approx(plain_loss(vectors.users, vectors.items, batch).item<float>()).epsilon(1e-5));
  // Xavier initialisation: variance 2 / (rows + columns).
  CHECK(vectors.users.std().item<double>() == Approx(std::sqrt(2.0 / 66)).epsilon(0.1));
  CHECK(model.sparse_parameters().empty());
  CHECK(BprMf(5, 4, 2, /*sparse=*/true).sparse_parameters().size() == 2);
}
