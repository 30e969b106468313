#include "reference_util.h"
#include "test_util.h"
#include "trainkit/io/weight_file.h"
#include "trainkit/optim/adam.h"
#include "trainkit/optim/sgd.h"
#include "trainkit/train/checkpoint.h"
#include "trainkit/train/weights.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

struct NetImpl : torch::nn::Module {
  NetImpl() {
    fc = register_module("fc", torch::nn::Linear(3, 2));
    head = register_module("head", torch::nn::Linear(2, 4));
  }
  torch::nn::Linear fc{nullptr}, head{nullptr};
};
TORCH_MODULE(Net);

AdamW make_adamw(const Net& net) {
  AdamW optimizer({.lr = 1e-2, .weight_decay = 0.1});
  optimizer.add_param_groups(default_param_groups(*net));
  return optimizer;
}

void step(const Net& net, Optimizer& optimizer, int number) {
  for (at::Tensor& parameter : net->parameters()) parameter.mutable_grad() = torch::full_like(parameter, 0.25 * number);
  optimizer.step();
}

/// The largest difference between the tensors of both states.
double difference(const Optimizer& a, const Optimizer& b) {
  double most = 0;
  const StateDict other = b.state_dict();
  for (const auto& [name, value] : a.state_dict()) {
    const auto* tensor = std::get_if<at::Tensor>(&value);
    if (tensor) most = std::max(most, (*tensor - std::get<at::Tensor>(other.at(name))).abs().max().item<double>());
  }
  return most;
}

std::string refusal(Optimizer& optimizer, const std::string& path) {
  const absl::Status status = load_torch_optimizer(optimizer, path);
  CHECK(exit_code(status) == ExitCode::kWeights);
  return error_line(status);
}

/// A file with a state for each of these names.
std::string file_of(const TempDir& dir, const std::vector<std::string>& names, const at::Tensor& exp_avg) {
  TorchValue file = TorchValue::dict();
  TorchValue& states = file.set("state", TorchValue::dict());
  for (const std::string& name : names) {
    TorchValue& state = states.set(name, TorchValue::dict());
    state.set("step", torch::tensor(3.f));
    state.set("exp_avg", exp_avg);
    state.set("exp_avg_sq", torch::ones({2, 3}));
  }
  REQUIRE(save_torch_value(Fs::posix(), dir / "o.pt", file) == absl::OkStatus());
  return dir / "o.pt";
}

}  // namespace

TEST_CASE("The state of AdamW is restored from a PyTorch file exactly", "[train][optimizer_file]") {
  TempDir dir;
  torch::manual_seed(1);
  Net net;
  AdamW optimizer = make_adamw(net);
  for (int number = 1; number <= 3; ++number) step(net, optimizer, number);
  REQUIRE(save_torch_optimizer(Fs::posix(), dir / "o.pt", optimizer) == absl::OkStatus());
  AdamW again = make_adamw(net);
  REQUIRE(load_torch_optimizer(again, dir / "o.pt") == absl::OkStatus());
  CHECK(difference(optimizer, again) == 0);
  CHECK(again.known_step_count() == 3);
}

TEST_CASE("An optimizer file that does not match is refused, and nothing changes", "[train][optimizer_file]") {
  TempDir dir;
  torch::nn::Linear layer(torch::nn::LinearOptions(3, 2).bias(false));
  AdamW optimizer({.lr = 1e-2});
  optimizer.add_param_groups({{.params = {{"fc.weight", layer->weight}}}});
  const at::Tensor good = torch::ones({2, 3});
  CHECK_THAT(refusal(optimizer, file_of(dir, {"fc.bias"}, good)),
             Catch::Contains("fc.weight: has no state in the file"));
  CHECK_THAT(refusal(optimizer, file_of(dir, {"fc.weight", "fc.bias"}, good)),
             Catch::Contains("fc.bias: is not a parameter of this optimizer"));
  CHECK_THAT(refusal(optimizer, file_of(dir, {"fc.weight"}, torch::ones({3, 2}))),
             Catch::Contains("fc.weight: exp_avg has another shape"));
  CHECK_THAT(refusal(optimizer, file_of(dir, {"fc.weight"}, torch::ones({2, 3}, torch::kLong))),
             Catch::Contains("fc.weight: exp_avg has another shape or is not floating point"));
  CHECK_THAT(refusal(optimizer, file_of(dir, {"0"}, good)),
             Catch::Contains("state.0: is a parameter number without a name"));
  REQUIRE(save_torch_file(Fs::posix(), dir / "w.pt", {{"fc.weight", good}}).ok());
  CHECK_THAT(refusal(optimizer, dir / "w.pt"), Catch::Contains("contains no state of Adam or AdamW"));
  CHECK(std::get<at::Tensor>(optimizer.state_dict().at("state.fc.weight.exp_avg")).abs().sum().item<double>() == 0);

  CHECK(load_torch_optimizer(optimizer, file_of(dir, {"module.fc.weight"}, good)) == absl::OkStatus());
  CHECK(torch::equal(std::get<at::Tensor>(optimizer.state_dict().at("state.fc.weight.exp_avg")), good));
  SGD sgd({.lr = 1e-2});
  sgd.add_param_groups({{.params = {{"fc.weight", layer->weight}}}});
  CHECK(save_torch_optimizer(Fs::posix(), dir / "s.pt", sgd).code() == absl::StatusCode::kUnimplemented);
}

TEST_CASE("Python resumes our AdamW and we resume Python's", "[train][optimizer_file]") {
  if (python().empty()) TRAINKIT_SKIP("no Python with torch");
  TempDir dir;
  torch::manual_seed(1);
  Net net;
  AdamW optimizer = make_adamw(net);
  for (int number = 1; number <= 3; ++number) step(net, optimizer, number);
  REQUIRE(save_torch_file(Fs::posix(), dir / "model.pt", named_tensors(*net)).ok());
  REQUIRE(save_torch_optimizer(Fs::posix(), dir / "optimizer.pt", optimizer).ok());
  CHECK(run_reference("torch_optimizer.py", dir.path().string()) == "alike\n");

  for (const int number : {4, 5}) step(net, optimizer, number);
  Net pythons;
  REQUIRE(load_weights(*pythons, dir / "python.pt", {.prefix = "model"}).ok());
  for (size_t i = 0; i < net->parameters().size(); ++i)
    CHECK(torch::allclose(pythons->parameters()[i], net->parameters()[i], 1e-6, 1e-7));
  AdamW taken = make_adamw(pythons);
  REQUIRE(load_torch_optimizer(taken, dir / "python.pt") == absl::OkStatus());
  CHECK(difference(optimizer, taken) < 1e-6);
  CHECK(taken.known_step_count() == 5);
  CHECK_THAT(refusal(taken, dir / "numbers.pt"), Catch::Contains("parameter number without a name"));
}
