#include "optim/optimizer_parts.h"
#include "reference_util.h"
#include "test_util.h"
#include "trainkit/io/weight_file.h"
#include "trainkit/optim/adagrad.h"
#include "trainkit/optim/adam.h"
#include "trainkit/optim/rmsprop.h"
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
  CHECK(trainkit::detail::OptimizerParts::of(again).counts.known() == 3);
}

TEST_CASE("The state of SparseAdam moves to Python's SparseAdam and back", "[train][optimizer_file]") {
  if (python().empty()) TRAINKIT_SKIP("TRAINKIT_PYTHON is not set");
  TempDir dir;
  torch::manual_seed(2);
  torch::nn::Embedding table(torch::nn::EmbeddingOptions(6, 4).sparse(true));
  SparseAdam optimizer({.lr = 0.1});
  optimizer.add_param_group({.params = {{"weight", table->weight}}});
  const auto step_of = [&](const std::vector<int64_t>& rows) {
    optimizer.zero_grad();
    table(torch::tensor(rows)).square().sum().backward();
    optimizer.step();
  };
  step_of({0, 1, 5});
  step_of({1, 2});
  REQUIRE(save_torch_file(Fs::posix(), dir / "table.pt", {{"weight", table->weight}}).ok());
  REQUIRE(save_torch_optimizer(Fs::posix(), dir / "optimizer.pt", optimizer) == absl::OkStatus());
  run_reference("sparse_adam_file.py", dir.path().string());
  step_of({1, 4, 1});
  SparseAdam again({.lr = 0.1});
  again.add_param_group({.params = {{"weight", table->weight}}});
  REQUIRE(load_torch_optimizer(again, dir / "python.pt") == absl::OkStatus());
  CHECK(difference(optimizer, again) == 0);
  CHECK(trainkit::detail::OptimizerParts::of(again).counts.known() == 3);
  AdamW other({.lr = 0.1});
  other.add_param_group({.params = {{"weight", table->weight}}});
  CHECK_THAT(refusal(other, dir / "python.pt"), Catch::Contains("is of another algorithm (got 'SparseAdam'"));
  REQUIRE(save_torch_optimizer(Fs::posix(), dir / "adamw.pt", other) == absl::OkStatus());
  CHECK_THAT(refusal(again, dir / "adamw.pt"), Catch::Contains("expected SparseAdam"));
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
  CHECK_THAT(refusal(optimizer, dir / "w.pt"),
             Catch::Contains("contains no state of Adam, AdamW, SparseAdam, RMSprop or Adagrad"));
  CHECK(std::get<at::Tensor>(optimizer.state_dict().at("state.fc.weight.exp_avg")).abs().sum().item<double>() == 0);

  CHECK(load_torch_optimizer(optimizer, file_of(dir, {"module.fc.weight"}, good)) == absl::OkStatus());
  CHECK(torch::equal(std::get<at::Tensor>(optimizer.state_dict().at("state.fc.weight.exp_avg")), good));
  SGD sgd({.lr = 1e-2});
  sgd.add_param_groups({{.params = {{"fc.weight", layer->weight}}}});
  CHECK(save_torch_optimizer(Fs::posix(), dir / "s.pt", sgd).code() == absl::StatusCode::kUnimplemented);
}

namespace {

/// A layer's weight and bias under the names of a Linear at the place "0".
Adam make_adam(const torch::nn::Linear& layer, const AdamOptions& options = {}) {
  Adam optimizer(options);
  optimizer.add_param_groups({{.params = {{"0.weight", layer->weight}, {"0.bias", layer->bias}}}});
  return optimizer;
}

/// The state_dict() of an optimizer of Python with these parameters, as the Adam of PyTorch 2.11 saves it.
struct PythonState {
  TorchValue step = torch::tensor(3.f);
  std::vector<std::pair<std::string, TorchValue>> settings = {{"lr", 0.1},
                                                              {"betas", TorchValue::tuple({0.9, 0.999})},
                                                              {"eps", 1e-8},
                                                              {"weight_decay", 0.0},
                                                              {"amsgrad", false},
                                                              {"maximize", false},
                                                              {"decoupled_weight_decay", false}};
  std::vector<std::string> moments = {"exp_avg", "exp_avg_sq"};
  bool bias_has_state = true;

  PythonState& set(const std::string& name, const TorchValue& value) {
    std::erase_if(settings, [&](const auto& setting) { return setting.first == name; });
    settings.emplace_back(name, value);
    return *this;
  }
  PythonState& remove(const std::string& name) {
    std::erase_if(settings, [&](const auto& setting) { return setting.first == name; });
    return *this;
  }
  TorchValue value() const {
    TorchValue all = TorchValue::dict();
    TorchValue& states = all.set("state", TorchValue::dict());
    for (const auto& [number, shape] : {std::pair("0", std::vector<int64_t>{2, 3}), {"1", {2}}}) {
      if (number[0] == '1' && !bias_has_state) continue;
      TorchValue& state = states.set(number, TorchValue::dict());
      state.set("step", step);
      for (const std::string& name : moments) state.set(name, torch::full(shape, 0.5));
    }
    TorchValue group = TorchValue::dict();
    for (const auto& [name, setting] : settings) group.set(name, setting);
    group.set("params", TorchValue::list({0, 1}));
    group.set("param_names", TorchValue::list({"0.weight", "0.bias"}));
    all.set("param_groups", TorchValue::list({group}));
    return all;
  }
  std::string saved(const TempDir& dir, const std::string& container = "") const {
    TorchValue file = value();
    if (container == "optimizer_states") {
      file = TorchValue::dict();
      file.set(container, TorchValue::list({value()}));
      file.set("state_dict", TorchValue::dict());
    }
    REQUIRE(save_torch_value(Fs::posix(), dir / "p.pt", file) == absl::OkStatus());
    return dir / "p.pt";
  }
};

double sum_of(const Optimizer& optimizer, const std::string& name) {
  return std::get<at::Tensor>(optimizer.state_dict().at("state." + name)).sum().item<double>();
}

}  // namespace

TEST_CASE("A state of Python loads with integer steps, without never-used parameters and from Lightning's list",
          "[train][optimizer_file]") {
  TempDir dir;
  const torch::nn::Linear layer(3, 2);
  PythonState integer, partial, plain;
  integer.step = 3;
  partial.bias_has_state = false;
  for (const std::string& path : {integer.saved(dir), plain.saved(dir, "optimizer_states")}) {
    Adam optimizer = make_adam(layer);
    REQUIRE(load_torch_optimizer(optimizer, path) == absl::OkStatus());
    CHECK(trainkit::detail::OptimizerParts::of(optimizer).counts.known() == 3);
    CHECK(sum_of(optimizer, "0.weight.exp_avg") == 3);
    CHECK(sum_of(optimizer, "0.bias.step") == 3);
  }
  Adam optimizer = make_adam(layer);
  REQUIRE(load_torch_optimizer(optimizer, plain.saved(dir)).ok());
  REQUIRE(load_torch_optimizer(optimizer, partial.saved(dir)) == absl::OkStatus());
  CHECK(sum_of(optimizer, "0.weight.step") == 3);
  CHECK(sum_of(optimizer, "0.bias.step") == 0);
  CHECK(sum_of(optimizer, "0.bias.exp_avg") == 0);
}

TEST_CASE("The state of another algorithm is refused by its name", "[train][optimizer_file]") {
  TempDir dir;
  const torch::nn::Linear layer(3, 2);
  struct Other {
    std::string name;
    PythonState state;
  };
  const auto with = [](const std::string& setting, std::vector<std::string> moments) {
    PythonState state;
    state.remove("amsgrad").remove("betas").set(setting, 0.1).moments = std::move(moments);
    return state;
  };
  PythonState radam, nadam, adamax;
  radam.remove("amsgrad");
  nadam.remove("amsgrad").set("momentum_decay", 4e-3).moments.emplace_back("mu_product");
  adamax.remove("amsgrad").remove("decoupled_weight_decay").moments = {"exp_avg", "exp_inf"};
  PythonState rprop = with("etas", {"prev", "step_size"});
  rprop.set("etas", TorchValue::tuple({0.5, 1.2}));
  const Other others[] = {{"RAdam", radam},
                          {"NAdam", nadam},
                          {"Adamax", adamax},
                          {"Adagrad", with("lr_decay", {"sum"})},
                          {"RMSprop", with("centered", {"square_avg"})},
                          {"Adadelta", with("rho", {"square_avg", "acc_delta"})},
                          {"ASGD", with("lambd", {"eta", "mu", "ax"})},
                          {"Rprop", rprop},
                          {"LBFGS", with("tolerance_grad", {})},
                          {"SGD", with("dampening", {"momentum_buffer"})},
                          {"Muon", with("ns_steps", {"momentum_buffer"})}};
  for (const Other& other : others) {
    CAPTURE(other.name);
    Adam optimizer = make_adam(layer);
    CHECK_THAT(refusal(optimizer, other.state.saved(dir)),
               Catch::Contains("state: is of another algorithm (got '" + other.name + "', expected Adam or AdamW)"));
    CHECK(sum_of(optimizer, "0.weight.exp_avg") == 0);
  }
  SGD sgd({.lr = 0.1});
  CHECK(load_torch_optimizer(sgd, PythonState().saved(dir)).code() == absl::StatusCode::kUnimplemented);
}

TEST_CASE("Settings that change the meaning of the state must agree", "[train][optimizer_file]") {
  TempDir dir;
  const torch::nn::Linear layer(3, 2);
  const auto refused = [&](const PythonState& state, const AdamOptions& options = {}) {
    Adam optimizer = make_adam(layer, options);
    return refusal(optimizer, state.saved(dir));
  };
  CHECK_THAT(refused(PythonState().set("amsgrad", true)), Catch::Contains("param_groups.0.amsgrad: is not supported"));
  CHECK_THAT(refused(PythonState().set("maximize", true)), Catch::Contains("maximize: is not supported"));
  CHECK_THAT(refused(PythonState().set("betas", TorchValue::tuple({0.8, 0.999}))),
             Catch::Contains("param_groups.0.betas.0: differs") && Catch::Contains("(got '0.8', expected 0.9"));
  // The means of an L2 penalty contain the decay, those of AdamW do not.
  PythonState decoupled;
  decoupled.set("decoupled_weight_decay", true).set("weight_decay", 0.01);
  CHECK_THAT(refused(decoupled, {.weight_decay = 0.1}), Catch::Contains("decoupled_weight_decay: differs"));
  Adam without_decay = make_adam(layer);
  CHECK(load_torch_optimizer(without_decay, decoupled.saved(dir)) == absl::OkStatus());
  Adam other_rate = make_adam(layer, {.lr = 0.5, .eps = 1e-6});
  CHECK(load_torch_optimizer(other_rate, PythonState().saved(dir)) == absl::OkStatus());
  AdamW adamw({.lr = 0.1});
  adamw.add_param_groups({{.params = {{"0.weight", layer->weight}, {"0.bias", layer->bias}}}});
  CHECK(load_torch_optimizer(adamw, PythonState().saved(dir)) == absl::OkStatus());
  CHECK_THAT(refusal(adamw, PythonState().set("weight_decay", 0.01).saved(dir)),
             Catch::Contains("decoupled_weight_decay: differs"));
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
  CHECK(trainkit::detail::OptimizerParts::of(taken).counts.known() == 5);
  CHECK_THAT(refusal(taken, dir / "numbers.pt"), Catch::Contains("parameter number without a name"));
}

TEST_CASE("The states of RMSprop and Adagrad move to Python's and back", "[train][optimizer_file]") {
  if (python().empty()) TRAINKIT_SKIP("TRAINKIT_PYTHON is not set");
  TempDir dir;
  const auto make = [](const std::string& kind, double initial) -> std::unique_ptr<Optimizer> {
    if (kind == "adagrad") {
      return std::make_unique<Adagrad>(
          AdagradOptions{.lr = 0.1, .lr_decay = 0.2, .weight_decay = 0.1, .initial_accumulator_value = initial});
    }
    return std::make_unique<RMSprop>(RMSpropOptions{.lr = 0.01,
                                                    .alpha = 0.8,
                                                    .weight_decay = 0.1,
                                                    .momentum = kind == "plain" ? 0 : 0.9,
                                                    .centered = kind == "centered"});
  };
  for (const std::string kind : {"plain", "centered", "adagrad"}) {
    CAPTURE(kind);
    torch::manual_seed(3);
    Net net;
    const auto optimizer = make(kind, 0.5);
    optimizer->add_param_group({.params = trainable_parameters(*net)});
    for (int number = 1; number <= 3; ++number) step(net, *optimizer, number);
    REQUIRE(save_torch_file(Fs::posix(), dir / "model.pt", named_tensors(*net)).ok());
    REQUIRE(save_torch_optimizer(Fs::posix(), dir / "optimizer.pt", *optimizer) == absl::OkStatus());
    run_reference("rmsprop_adagrad_file.py", dir.path().string() + " " + kind);
    step(net, *optimizer, 4);
    Net pythons;
    REQUIRE(load_weights(*pythons, dir / "python.pt", {.prefix = "model"}).ok());
    for (size_t i = 0; i < net->parameters().size(); ++i) {
      CHECK(torch::allclose(pythons->parameters()[i], net->parameters()[i], 1e-5, 1e-6));
    }
    const auto taken = make(kind, 0);
    taken->add_param_group({.params = trainable_parameters(*pythons)});
    REQUIRE(load_torch_optimizer(*taken, dir / "python.pt") == absl::OkStatus());
    CHECK(difference(*optimizer, *taken) < 1e-5);
    AdamW adamw = make_adamw(net);
    CHECK_THAT(refusal(adamw, dir / "python.pt"), Catch::Contains("is of another algorithm"));
    REQUIRE(save_torch_optimizer(Fs::posix(), dir / "adamw.pt", adamw) == absl::OkStatus());
    CHECK_THAT(refusal(*taken, dir / "adamw.pt"),
               Catch::Contains(kind == "adagrad" ? "expected Adagrad" : "expected RMSprop"));
    if (kind == "adagrad") continue;
    const auto other = make(kind == "plain" ? "centered" : "plain", 0);  // other tensors in its state
    other->add_param_group({.params = trainable_parameters(*pythons)});
    CHECK_THAT(refusal(*other, dir / "python.pt"), Catch::Contains("momentum_buffer") || Catch::Contains("grad_avg"));
  }
}

TEST_CASE("The state of 50,000 parameters is written and read", "[train][optimizer_file]") {
  TempDir dir;
  struct Many final : torch::nn::Module {
    Many() {
      for (int i = 0; i < 50'000; ++i) register_parameter("layer" + std::to_string(i) + "_w", torch::ones({2}));
    }
  } model;
  AdamW optimizer({.lr = 1e-2}), other({.lr = 1e-2});
  optimizer.add_param_groups(default_param_groups(model));
  other.add_param_groups(default_param_groups(model));
  for (at::Tensor& parameter : model.parameters()) parameter.mutable_grad() = torch::ones({2});
  optimizer.step();
  REQUIRE(save_torch_optimizer(Fs::posix(), dir / "o.pt", optimizer) == absl::OkStatus());
  REQUIRE(load_torch_optimizer(other, dir / "o.pt") == absl::OkStatus());
  CHECK(difference(optimizer, other) == 0);
}
