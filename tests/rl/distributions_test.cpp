// Samples of distributions, and what they and ppo_loss refuse.
#include "trainkit/rl/distributions.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include "test_util.h"
#include "trainkit/rl/ppo_loss.h"

using namespace trainkit;

namespace {

at::Generator generator(uint64_t seed) { return at::make_generator<at::CPUGeneratorImpl>(seed); }

}  // namespace

TEST_CASE("Categorical samples by probability, never a masked action, and only from its generator", "[rl]") {
  const at::Tensor probabilities = torch::tensor({0.1, 0.2, 0.3, 0.4}, at::kFloat);
  const at::Tensor mask = torch::tensor({1, 1, 0, 1}, at::kLong).to(at::kBool);
  const int64_t rows = 20'000;
  torch::manual_seed(1);
  for (const bool masks : {false, true}) {
    const Categorical categorical(probabilities.log().expand({rows, 4}), masks ? mask.expand({rows, 4}) : at::Tensor());
    const at::Tensor sample = categorical.sample(generator(5));
    CHECK(sample.scalar_type() == at::kLong);
    const at::Tensor frequency = torch::bincount(sample, {}, 4).to(at::kFloat) / rows;
    const at::Tensor expected = masks ? probabilities * mask / 0.7 : probabilities;
    CHECK((frequency - expected).abs().max().item<float>() < 0.015F);  // four standard errors
    CHECK((frequency[2].item<float>() == 0) == masks);
    CHECK(sample.equal(categorical.sample(generator(5))));
    CHECK(!sample.equal(categorical.sample(generator(6))));
  }
  const at::Tensor drawn = torch::rand({3});
  torch::manual_seed(1);
  CHECK(drawn.equal(torch::rand({3})));
  // A row that allows nothing has no NaN.
  const Categorical none(torch::randn({1, 4}), torch::zeros({1, 4}, at::kBool));
  CHECK(none.entropy().isfinite().all().item<bool>());
}

TEST_CASE("Normal and TanhNormal sample their densities, and gradients flow through the samples", "[rl]") {
  const at::Tensor mean = torch::tensor({0.3, -0.8}, at::kDouble).requires_grad_();
  const at::Tensor std = torch::tensor({0.5, 1.2}, at::kDouble).requires_grad_();
  const int64_t rows = 40'000;
  const at::Tensor sample = Normal(mean.expand({rows, 2}), std).sample(generator(1));
  CHECK(torch::allclose(sample.mean(0), mean, 0, 0.03));
  CHECK(torch::allclose(sample.std(0), std, 0, 0.03));
  CHECK(sample.equal(Normal(mean.expand({rows, 2}), std).sample(generator(1))));

  const TanhNormal squashed(mean.expand({rows, 2}), std);
  const auto [action, log_prob] = squashed.sample(generator(1));
  CHECK(action.equal(sample.tanh()));
  CHECK(torch::allclose(log_prob, squashed.log_prob(action), 1e-6, 1e-6));
  CHECK(squashed.mode()[0].equal(mean.tanh()));
  CHECK(squashed.entropy_estimate(generator(1)).equal(-log_prob));
  // The density's integral over (-1, 1), by the midpoints of 4,000 intervals, is 1.
  const at::Tensor grid = ((torch::arange(4000, at::kDouble) + 0.5) / 2000 - 1).unsqueeze(1);
  const TanhNormal one(mean.slice(0, 0, 1).expand({4000, 1}), std.slice(0, 0, 1));
  CHECK(std::abs((one.log_prob(grid).exp().sum() / 2000).item<double>() - 1) < 1e-4);
  // d mean(tanh(mean + std * noise)) / d mean is the mean of 1 - tanh^2.
  const auto gradients = torch::autograd::grad({action.mean()}, {mean, std}, {}, /*retain_graph=*/true);
  CHECK(torch::allclose(gradients[0], (1 - action.square()).mean(0) / 2));
  CHECK(torch::autograd::grad({log_prob.mean()}, {std})[0].abs().min().item<double>() > 0.01);
  // Far out the density stays finite.
  CHECK(TanhNormal(torch::full({1, 1}, 40.0F), torch::ones({1}))
            .sample(generator(2))
            .second.isfinite()
            .all()
            .item<bool>());
  CHECK(one.log_prob(torch::ones({1, 1}, at::kDouble)).isfinite().all().item<bool>());
}

TEST_CASE("ppo_loss in one pass has the values and gradients of its operations, also where two losses are equal",
          "[rl]") {
  torch::manual_seed(2);
  const int64_t rows = 37;
  std::vector<at::Tensor> terms;
  for (int i = 0; i < 7; ++i) terms.push_back(torch::randn({rows}) * 0.5);
  terms[3].slice(0, 0, 5).copy_(terms[0].slice(0, 0, 5));  // the ratio is 1
  terms[6].slice(0, 5, 9).copy_(terms[2].slice(0, 5, 9));  // the value has not moved
  terms[4][9] = 0;
  /// Loss, metrics and the gradients of twice the loss; in float64 by operations, in float32 in one pass.
  const auto compute = [&](at::ScalarType dtype, double value_clip) {
    std::vector<at::Tensor> own;
    for (size_t i = 0; i < terms.size(); ++i) own.push_back(terms[i].to(dtype).detach().clone().requires_grad_(i < 3));
    const LossOutput output = ppo_loss({.log_prob = own[0],
                                        .entropy = own[1],
                                        .value = own[2],
                                        .old_log_prob = own[3],
                                        .advantage = own[4],
                                        .returns = own[5],
                                        .old_value = own[6]},
                                       {.clip = 0.2, .entropy_weight = 0.1, .value_clip = value_clip});
    std::vector<at::Tensor> results = {output.loss};
    for (const auto& [name, metric] : output.metrics) results.push_back(metric);
    (2 * output.loss).backward({}, /*retain_graph=*/true);
    output.loss.backward();  // 1, added to the 2 from before
    for (int i = 0; i < 3; ++i) results.push_back(own[i].grad());
    return results;
  };
  for (const double value_clip : {0.0, 0.3}) {
    const std::vector<at::Tensor> expected = compute(at::kDouble, value_clip),
                                  results = compute(at::kFloat, value_clip);
    for (size_t i = 0; i < expected.size(); ++i) {
      CAPTURE(value_clip, i);
      CHECK(torch::allclose(results[i].to(at::kDouble), expected[i], 1e-5, 1e-7));
    }
  }
  const at::Tensor log_prob = terms[0].clone().requires_grad_();
  const LossOutput output = ppo_loss({.log_prob = log_prob,
                                      .entropy = terms[1],
                                      .value = terms[2],
                                      .old_log_prob = terms[3],
                                      .advantage = terms[4],
                                      .returns = terms[5]});
  CHECK_THROWS_WITH(torch::autograd::grad({output.loss}, {log_prob}, {}, true, /*create_graph=*/true),
                    Catch::Contains("second derivative"));
}

TEST_CASE("Distributions and ppo_loss refuse shapes that would broadcast, and options out of range", "[rl]") {
  CHECK_THROWS_WITH(Categorical(torch::zeros({2, 3}), torch::zeros({3}, at::kBool)), Catch::Contains("mask"));
  CHECK_THROWS_WITH(Categorical(torch::zeros({2, 3}, at::kLong)), Catch::Contains("float32 or float64"));
  CHECK_THROWS_WITH(Normal(torch::zeros({3}), torch::ones({2, 3})), Catch::Contains("std"));
  const at::Tensor rows = torch::zeros({4});
  const PpoTerms terms{
      .log_prob = rows, .entropy = rows, .value = rows, .old_log_prob = rows, .advantage = rows, .returns = rows};
  CHECK_NOTHROW(ppo_loss(terms));
  CHECK_THROWS_WITH(ppo_loss(terms, {.clip = 0}), Catch::Contains("clip"));
  CHECK_THROWS_WITH(ppo_loss(terms, {.value_clip = 0.2}), Catch::Contains("old_value"));
  PpoTerms column = terms;
  column.value = rows.unsqueeze(1);
  CHECK_THROWS_WITH(ppo_loss(column), Catch::Contains("value must have shape (N)"));
  column.value = at::Tensor();
  CHECK_THROWS_WITH(ppo_loss(column), Catch::Contains("value is missing"));
}
