#include <torch/torch.h>

#include <catch2/catch.hpp>

#include "test_util.h"
#include "trainkit/core/error.h"
#include "trainkit/optim/adam.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

struct NetImpl : torch::nn::Module {
  NetImpl()
      : words(register_module("words", torch::nn::Embedding(11, 6))),
        block(register_module("block", torch::nn::Linear(6, 10))),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({10})))),
        head(register_module("head", torch::nn::Linear(10, 11))) {}
  at::Tensor forward(const at::Tensor& ids) { return head(norm(block(words(ids)))); }
  torch::nn::Embedding words;
  torch::nn::Linear block;
  torch::nn::LayerNorm norm;
  torch::nn::Linear head;
};
TORCH_MODULE(Net);

Net make_net() {
  torch::manual_seed(1);
  return Net();
}

const MuonOptions kOptions = {.lr = 1e-2, .selects = [](const std::string& name) { return name != "head.weight"; }};

void take_step(Net& net, Muon& optimizer, int64_t seed, const at::Tensor& found_inf = {}) {
  const at::Tensor ids = torch::arange(seed, seed + 8).remainder(11);
  at::cross_entropy_loss(net->forward(ids), (ids + 1).remainder(11)).backward();
  found_inf.defined() ? optimizer.step_unless(found_inf) : optimizer.step();
  optimizer.zero_grad();
}

std::vector<at::Tensor> copies(const Net& net, const Muon& optimizer) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& parameter : net->parameters()) all.push_back(parameter.detach().clone());
  for (const auto& [name, value] : optimizer.state_dict()) {
    if (const auto* tensor = std::get_if<at::Tensor>(&value)) all.push_back(tensor->clone());
  }
  return all;
}

bool equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](auto& x, auto& y) { return torch::equal(x, y); });
}

std::vector<std::string> names(const ParamGroup& group) {
  std::vector<std::string> names;
  for (const NamedParameter& parameter : group.params) names.push_back(parameter.name);
  return names;
}

}  // namespace

TEST_CASE("Muon takes the selected matrices; embeddings, norms, biases and the output layer stay with AdamW") {
  const auto groups = Muon(kOptions).groups_for(*make_net());
  REQUIRE(groups.size() == 3);
  CHECK(groups[0].name == "muon");
  CHECK(groups[0].orthogonalize);
  CHECK(names(groups[0]) == std::vector<std::string>{"block.weight"});
  CHECK(names(groups[1]) == std::vector<std::string>{"words.weight", "head.weight"});
  CHECK(groups[2].weight_decay == 0.0);
  CHECK(names(groups[2]) == std::vector<std::string>{"block.bias", "norm.weight", "norm.bias", "head.bias"});
  const auto all = Muon().groups_for(*make_net());
  CHECK(names(all[0]) == std::vector<std::string>{"block.weight", "head.weight"});
}

TEST_CASE("The update of a matrix is nearly orthogonal, and its size follows the rate") {
  at::Tensor matrix = torch::zeros({6, 9}).requires_grad_();
  Muon optimizer({.lr = 0.5, .weight_decay = 0});
  optimizer.add_param_group({.params = {{"matrix", matrix}}, .orthogonalize = true});
  matrix.mutable_grad() = torch::randn({6, 9}) * 1e-3;
  optimizer.step();
  const at::Tensor values = at::linalg_svdvals(matrix.detach() / 0.5);
  CHECK(values.min().item<double>() > 0.6);
  CHECK(values.max().item<double>() < 1.3);
}

TEST_CASE("Muon reduces the loss, and a loaded state continues with the same bits") {
  Net net = make_net(), other = make_net();
  Muon optimizer(kOptions), loaded(kOptions);
  optimizer.add_param_groups(optimizer.groups_for(*net));
  loaded.add_param_groups(loaded.groups_for(*other));
  for (int step = 0; step < 20; ++step) take_step(net, optimizer, step);
  {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < net->parameters().size(); ++i) other->parameters()[i].copy_(net->parameters()[i]);
  }
  const absl::Status status = loaded.load_state_dict(optimizer.state_dict());
  INFO(status);
  REQUIRE(status.ok());
  for (int step = 20; step < 40; ++step) take_step(net, optimizer, step), take_step(other, loaded, step);
  CHECK(equal(copies(net, optimizer), copies(other, loaded)));
  const at::Tensor ids = torch::arange(11);
  CHECK(at::cross_entropy_loss(net->forward(ids), (ids + 1).remainder(11)).item<double>() < 1.8);
  AdamW adamw;
  Net third = make_net();
  adamw.add_param_groups(adamw.groups_for(*third));
  CHECK(exit_code(adamw.load_state_dict(optimizer.state_dict())) == ExitCode::kWeights);
}

TEST_CASE("A step of Muon that the device skips changes no bit, and one that it takes equals an ordinary step") {
  MuonOptions options = kOptions;
  options.capturable = true;
  Net net = make_net(), plain = make_net();
  Muon optimizer(options), expected(options);
  optimizer.add_param_groups(optimizer.groups_for(*net));
  expected.add_param_groups(expected.groups_for(*plain));
  for (int step = 0; step < 5; ++step) {
    const auto before = copies(net, optimizer);
    at::cross_entropy_loss(net->forward(torch::arange(8)), torch::arange(8)).backward();
    net->block->weight.mutable_grad().fill_(NAN);
    optimizer.step_unless(torch::ones({}));
    optimizer.zero_grad();
    CHECK(equal(copies(net, optimizer), before));
    take_step(net, optimizer, step, torch::zeros({}));
    take_step(plain, expected, step);
    CHECK(equal(copies(net, optimizer), copies(plain, expected)));
  }
}

TEST_CASE("Muon updates float64 matrices as float32 ones, also in one group") {
  const at::Tensor first = torch::randn({6, 4}), gradient = torch::randn({6, 4});
  at::Tensor single = first.clone().requires_grad_(), twice = first.to(torch::kDouble).requires_grad_();
  Muon optimizer({.lr = 1e-2});
  optimizer.add_param_group({.params = {{"single", single}, {"twice", twice}}, .orthogonalize = true});
  for (int step = 0; step < 3; ++step) {
    single.mutable_grad() = gradient.clone();
    twice.mutable_grad() = gradient.to(torch::kDouble);
    optimizer.step();
  }
  CHECK_FALSE(torch::equal(single, first));
  CHECK(torch::allclose(twice, single.to(torch::kDouble), /*rtol=*/0, /*atol=*/1e-6));
}

TEST_CASE("Muon rejects options out of range and parameters that are no matrices") {
  CHECK_THROWS_WITH(Muon({.momentum = 1}), Catch::Contains("momentum must be in [0, 1)"));
  CHECK_THROWS_WITH(Muon({.lr = -1, .betas = {2, 0.9}}), Catch::Contains("lr must be") || Catch::Contains("betas[0]"));
  const at::Tensor vector = torch::zeros({3}).requires_grad_();
  Muon muon;
  CHECK_THROWS_WITH(muon.add_param_group({.params = {{"bias", vector}}, .orthogonalize = true}),
                    Catch::Contains("'bias' must be a contiguous float32 or float64 matrix"));
  AdamW adamw;
  CHECK_THROWS_WITH(adamw.add_param_group({.params = {{"bias", vector}}, .orthogonalize = true}),
                    Catch::Contains("only Muon"));
}

TEST_CASE("Muon keeps one tensor per matrix, and copies have its options") {
  at::Tensor matrix = torch::randn({64, 48}).requires_grad_();
  Muon optimizer({.lr = 1e-2});
  optimizer.add_param_group({.params = {{"matrix", matrix}}, .orthogonalize = true});
  const auto copy = optimizer.create_like();
  CHECK(copy->lr() == 1e-2);
  CHECK(optimizer.state_dict().contains("state.matrix.momentum_buffer"));
  CHECK_FALSE(optimizer.state_dict().contains("state.matrix.exp_avg"));
}
