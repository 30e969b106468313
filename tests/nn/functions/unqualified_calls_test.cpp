// Programs that use both namespaces call LibTorch's functions without their namespace: argument-dependent lookup finds
// at:: for each tensor, so a function of the library with a fitting signature would make these calls ambiguous. This
// file fails to compile then.
#include <ATen/ATen.h>

#include "test_util.h"
#include "trainkit/trainkit.h"

TEST_CASE("LibTorch's losses and functions are called without a namespace", "[nn][unqualified_calls]") {
  using namespace at;
  using namespace trainkit;
  const Tensor a = at::rand({4, 3}, kDouble), b = at::rand({4, 3}, kDouble), y = tensor({0, 2, 1, 1}, kLong);
  const Tensor positive = a.sigmoid(), sign = ones({4}, kDouble);
  const std::vector<Tensor> losses = {mse_loss(a, b),
                                      mse_loss(a, b, Reduction::Sum),
                                      l1_loss(a, b),
                                      smooth_l1_loss(a, b),
                                      huber_loss(a, b),
                                      huber_loss(a, b, Reduction::Mean, 0.5),
                                      binary_cross_entropy(positive, positive),
                                      binary_cross_entropy_with_logits(a, positive),
                                      cross_entropy_loss(a, y),
                                      nll_loss(log_softmax(a, 1), y),
                                      kl_div(log_softmax(a, 1), softmax(b, 1)),
                                      poisson_nll_loss(a, b, true, false, 1e-8, Reduction::Mean),
                                      soft_margin_loss(a, b),
                                      multi_margin_loss(a, y),
                                      multilabel_margin_loss(a, zeros({4, 3}, kLong)),
                                      hinge_embedding_loss(a, b),
                                      cosine_embedding_loss(a, b, sign),
                                      margin_ranking_loss(a.select(1, 0), b.select(1, 0), sign),
                                      triplet_margin_loss(a, b, positive),
                                      cosine_similarity(a, b)};
  for (const Tensor& loss : losses) CHECK(loss.isfinite().all().item<bool>());
  // The library's own, by the same names as far as they exist in PyTorch.
  CHECK(cross_entropy(a, y).allclose(cross_entropy_loss(a, y)));
  CHECK(cross_entropy(a, y, -100, {}, 0.1).allclose(cross_entropy_loss(a, y, {}, Reduction::Mean, -100, 0.1)));
  CHECK(linear_cross_entropy(a, b, y).allclose(cross_entropy_loss(linear(a, b), y)));
  CHECK(embedding_lookup(y, a).equal(embedding(a, y)));
  // LibTorch's functions whose names are also the library's, or near them.
  const Tensor x = at::rand({1, 2, 5, 5}), w = at::rand({3, 2, 3, 3}), none;
  const Tensor mine = convolution(x, w, none, {1, 1}, {0, 0});
  CHECK(mine.allclose(convolution(x, w, none, {1, 1}, {0, 0}, {1, 1}, false, {0, 0}, 1), 1e-4, 1e-5));
  CHECK(mine.allclose(conv2d(x, w), 1e-4, 1e-5));
  CHECK(dropout(a, 0, false).equal(a));
  CHECK(embedding(a, y).size(0) == 4);
  CHECK(relu(-positive).sum().item<double>() == 0);
  CHECK(max(a).item<double>() >= mean(a).item<double>());
  CHECK(norm(a).item<double>() > 0);
  CHECK(layer_norm(a, {3}).size(1) == 3);
}
