#include "test_util.h"
#include "trainkit/optim/optimizer.h"

namespace trainkit {
namespace {

/// An embedding that shares its weight with the head, a norm, a frozen bias.
struct TiedModel : torch::nn::Module {
  TiedModel() {
    embedding = register_module("embedding", torch::nn::Embedding(6, 4));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})));
    register_parameter("head_weight", embedding->weight);
    register_parameter("head_bias", torch::zeros({6})).set_requires_grad(false);
  }
  torch::nn::Embedding embedding{nullptr};
  torch::nn::LayerNorm norm{nullptr};
};

std::vector<std::string> names(const std::vector<NamedParameter>& params) {
  std::vector<std::string> names;
  for (const NamedParameter& param : params) names.push_back(param.name);
  return names;
}

TEST_CASE("trainable_parameters lists a tied tensor once and excludes frozen ones") {
  const TiedModel model;
  REQUIRE(model.named_parameters().size() == 5);
  CHECK(names(trainable_parameters(model)) == std::vector<std::string>{"head_weight", "norm.weight", "norm.bias"});
}

TEST_CASE("default_param_groups applies weight decay to matrices and embeddings, not to norms and biases") {
  const TiedModel model;
  const auto groups = default_param_groups(model);
  REQUIRE(groups.size() == 2);
  CHECK(names(groups[0].params) == std::vector<std::string>{"head_weight"});
  CHECK_FALSE(groups[0].weight_decay);
  CHECK(names(groups[1].params) == std::vector<std::string>{"norm.weight", "norm.bias"});
  CHECK(groups[1].weight_decay == 0.0);
}

TEST_CASE("default_param_groups omits an empty group") {
  torch::nn::Linear no_bias(torch::nn::LinearOptions(3, 2).bias(false));
  const auto groups = default_param_groups(*no_bias);
  REQUIRE(groups.size() == 1);
  CHECK(groups[0].name == "decay");
}

}  // namespace
}  // namespace trainkit
