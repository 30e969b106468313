// Distributions and the PPO loss against Python.
#include <torch/torch.h>

#include <map>

#include "reference_util.h"
#include "trainkit/rl/distributions.h"
#include "trainkit/rl/ppo_loss.h"

using namespace trainkit;

namespace {

constexpr int64_t kRows = 7, kActions = 5;

at::Tensor waves(double frequency, at::IntArrayRef shape) {
  return torch::sin(torch::arange(c10::multiply_integers(shape), at::kDouble) * frequency).reshape(shape);
}

/// Python's values by name, computed once.
const std::map<std::string, at::Tensor>& python_values() {
  static std::map<std::string, at::Tensor> values;
  if (!values.empty()) return values;
  for (const auto& row : test::parse_csv(test::run_reference("distributions.py"))) {
    std::vector<double> numbers;
    for (size_t i = 1; i < row.size(); ++i) numbers.push_back(std::stod(row[i]));
    values[row.at(0)] = torch::tensor(numbers, at::kDouble);
  }
  return values;
}

bool is_python(const std::string& name, const at::Tensor& tensor) {
  return torch::allclose(tensor.detach().to(at::kDouble).flatten(), python_values().at(name), 1e-9, 1e-12);
}

/// Gradients of the sum of `output` are Python's "<name>.grad<i>".
bool are_python(const std::string& name, const at::Tensor& output, const std::vector<at::Tensor>& inputs) {
  const auto gradients = torch::autograd::grad({output.sum()}, inputs);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!is_python(name + ".grad" + std::to_string(i), gradients[i])) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("Distributions have the values and gradients of torch.distributions", "[rl]") {
  if (test::python().empty()) TRAINKIT_SKIP("TRAINKIT_PYTHON is not set");
  const at::Tensor choice = torch::tensor({0, 2, 4, 0, 2, 4, 2}, at::kLong);
  for (const bool masks : {false, true}) {
    const std::string name = masks ? "masked" : "categorical";
    CAPTURE(name);
    const at::Tensor logits = (4 * waves(1.7, {kRows, kActions})).requires_grad_();
    const at::Tensor mask = torch::tensor({1, 0, 1, 0, 1}, at::kLong).to(at::kBool).repeat({kRows, 1});
    const Categorical categorical(logits, masks ? mask : at::Tensor());
    CHECK(is_python(name + ".log_prob", categorical.log_prob(choice)));
    CHECK(is_python(name + ".entropy", categorical.entropy()));
    CHECK(is_python(name + ".mode", categorical.mode()));
    CHECK(are_python(name, categorical.log_prob(choice) + 0.3 * categorical.entropy(), {logits}));
  }

  const at::Tensor mean = waves(1.3, {kRows, kActions}).requires_grad_();
  const at::Tensor shared_std = (0.2 + waves(0.9, {kActions}).abs()).requires_grad_();
  const at::Tensor action = waves(2.1, {kRows, kActions});
  const Normal normal(mean, shared_std);
  CHECK(is_python("normal.log_prob", normal.log_prob(2 * action)));
  CHECK(is_python("normal.entropy", normal.entropy()));
  CHECK(are_python("normal", normal.log_prob(2 * action) + 0.3 * normal.entropy(), {mean, shared_std}));

  const at::Tensor std = (0.2 + waves(0.9, {kRows, kActions}).abs()).requires_grad_();
  const TanhNormal tanh_normal(mean, std);
  CHECK(is_python("tanh_normal.log_prob", tanh_normal.log_prob(0.999 * action)));
  CHECK(are_python("tanh_normal", tanh_normal.log_prob(0.999 * action), {mean, std}));
}

TEST_CASE("ppo_loss is CleanRL's, with plain and clipped values", "[rl]") {
  if (test::python().empty()) TRAINKIT_SKIP("TRAINKIT_PYTHON is not set");
  for (const double value_clip : {0.0, 0.3}) {
    const std::string name = value_clip > 0 ? "ppo_clipped" : "ppo";
    CAPTURE(name);
    const at::Tensor log_prob = waves(1.1, {kRows}).requires_grad_(), entropy = waves(1.9, {kRows}).requires_grad_();
    const at::Tensor value = waves(2.3, {kRows}).requires_grad_();
    const LossOutput output =
        ppo_loss({.log_prob = log_prob,
                  .entropy = entropy,
                  .value = value,
                  .old_log_prob = log_prob.detach() - 0.4 * waves(3.1, {kRows}),
                  .advantage = waves(0.7, {kRows}),
                  .returns = 2 * waves(0.5, {kRows}),
                  .old_value = waves(2.9, {kRows})},
                 {.clip = 0.2, .value_weight = 0.4, .entropy_weight = 0.02, .value_clip = value_clip});
    std::vector<at::Tensor> values = {output.loss};
    std::string names;
    for (const auto& [metric, tensor] : output.metrics) {
      names += metric + " ";
      values.push_back(tensor);
      CHECK(!tensor.requires_grad());
    }
    CHECK(names == "policy_loss value_loss entropy kl clip_fraction ");
    CHECK(is_python(name + ".values", torch::stack(values)));
    CHECK(are_python(name, output.loss, {log_prob, entropy, value}));
  }
}
