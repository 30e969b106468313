// States of optimizers: saved, loaded and refused.
#include <limits>

#include "optim/optimizer_parts.h"
#include "optimizer_model.h"
#include "state_dict_util.h"
#include "test_util.h"
#include "trainkit/optim/adam.h"
#include "trainkit/optim/lr_scheduler.h"
#include "trainkit/optim/sgd.h"

namespace trainkit {
namespace {

using test::make;
using test::Model;

/// A copy of a state with one entry removed or replaced.
StateDict changed(StateDict state, const std::string& name, std::optional<StateValue> value) {
  state.erase(name);
  if (value) state.emplace(name, *value);
  return state;
}

TEST_CASE("An optimizer's state saved in the middle and loaded gives the bits of an uninterrupted run") {
  const auto kind = GENERATE(as<std::string>(), "adamw", "adam", "capturable", "sgd", "nesterov", "rmsprop", "adagrad");
  CAPTURE(kind);
  Model whole, halves;
  const auto first = make(kind);
  first->add_param_groups(whole.groups());
  for (int step = 0; step < 11; ++step) {
    whole.backward(step);
    first->step();
  }
  const StateDict saved = test::clone_state(first->state_dict());
  {
    const at::NoGradGuard no_grad;
    halves.matrix.copy_(whole.matrix);
    halves.vector.copy_(whole.vector);
  }
  const auto second = make(kind);
  std::vector<ParamGroup> groups = halves.groups();
  groups[1].lr_multiple = groups[1].weight_decay.emplace(0.75);  // everything here differs from the state
  second->add_param_groups(groups);
  second->set_lr(77);
  second->step_unless(torch::ones({}));  // skipped
  REQUIRE(second->load_state_dict(saved).ok());
  for (int step = 11; step < 25; ++step) {
    for (const auto& [model, optimizer] : {std::pair(&whole, first.get()), std::pair(&halves, second.get())}) {
      model->backward(step);
      optimizer->step();
    }
  }
  CHECK(torch::equal(whole.matrix, halves.matrix));
  CHECK(torch::equal(whole.vector, halves.vector));
  CHECK(test::same_state(first->state_dict(), second->state_dict()));
  CHECK(second->step_count().item<int64_t>() == 25);
  CHECK(detail::OptimizerParts::of(*second).counts.upper_bound() == 25);
}

TEST_CASE("An optimizer's state uses the parameters' names") {
  Model model;
  AdamW optimizer({.lr = 0.25});
  optimizer.add_param_groups(model.groups());
  model.backward(2);  // the vector has no gradient
  optimizer.step();
  const StateDict state = optimizer.state_dict();
  CHECK(std::get<std::string>(state.at("type")) == "adamw");
  CHECK(std::get<double>(state.at("lr")) == 0.25);
  CHECK(std::get<int64_t>(state.at("step")) == 1);
  CHECK(std::get<double>(state.at("groups.1.lr_multiple")) == 0.5);
  CHECK(std::get<double>(state.at("groups.1.weight_decay")) == 0.0);
  CHECK(std::get<at::Tensor>(state.at("state.matrix.exp_avg")).sizes() == model.matrix.sizes());
  CHECK(std::get<at::Tensor>(state.at("state.matrix.exp_avg_sq")).sizes() == model.matrix.sizes());
  CHECK(std::get<at::Tensor>(state.at("state.matrix.step")).item<int64_t>() == 1);
  CHECK(std::get<at::Tensor>(state.at("state.vector.step")).item<int64_t>() == 0);
}

TEST_CASE("An invalid optimizer state is refused with exit code 5, and nothing is changed") {
  Model model;
  AdamW optimizer({.lr = 0.1});
  optimizer.add_param_groups(model.groups());
  model.backward(0);
  optimizer.step();
  const StateDict good = test::clone_state(optimizer.state_dict());
  const double nan = std::numeric_limits<double>::quiet_NaN();
  // All of them also differ from the live state in a valid entry, to detect a partial load.
  StateDict other = changed(good, "lr", 0.7);
  other = changed(other, "state.matrix.exp_avg", at::Tensor(torch::ones({4, 3})));
  const std::vector<StateDict> bad = {
      changed(other, "type", std::string("adam")),
      changed(other, "type", std::nullopt),
      changed(other, "lr", std::nullopt),
      changed(other, "lr", nan),
      changed(other, "lr", -1.0),
      changed(other, "lr", int64_t{1}),
      changed(other, "step", int64_t{-1}),
      changed(other, "beta2", 1.0),
      changed(other, "eps", std::nullopt),
      changed(other, "groups.1.weight_decay", -0.5),
      changed(other, "groups.1.lr_multiple", std::nullopt),
      changed(other, "groups.2.lr_multiple", 1.0),
      changed(other, "state.vector.exp_avg", std::nullopt),
      changed(other, "state.vector.exp_avg", at::Tensor(torch::ones({4}))),
      changed(other, "state.vector.exp_avg", at::Tensor(torch::ones({5}, at::kDouble))),
      changed(other, "state.vector.exp_avg", at::Tensor()),
      changed(other, "state.vector.step", int64_t{1}),
      changed(other, "state.vector.step", at::Tensor(torch::full({}, -1.0f))),
      changed(other, "state.vector.step", at::Tensor(torch::full({}, 0.5f))),
      changed(other, "state.vector.step", at::Tensor(torch::full({}, 9.0f))),  // above "step"
      changed(other, "state.other.exp_avg", at::Tensor(torch::ones({5}))),
      StateDict{}};
  for (const StateDict& state : bad) {
    const absl::Status status = optimizer.load_state_dict(state);
    CAPTURE(status.message());
    CHECK(exit_code(status) == ExitCode::kWeights);
    CHECK(test::same_state(optimizer.state_dict(), good));
  }
  CHECK(optimizer.load_state_dict(other).ok());
  CHECK(optimizer.lr() == 0.7);
}

TEST_CASE("SGD without momentum refuses the state of SGD with momentum") {
  Model model, same;
  SGD with({.lr = 0.1, .momentum = 0.9});
  SGD without({.lr = 0.1});
  with.add_param_groups(model.groups());
  without.add_param_groups(same.groups());
  CHECK(exit_code(without.load_state_dict(with.state_dict())) == ExitCode::kWeights);
  CHECK(exit_code(with.load_state_dict(without.state_dict())) == ExitCode::kWeights);
}

TEST_CASE("The host counts steps beyond the largest float32 integer, and the schedule follows") {
  constexpr int64_t kLargest = int64_t{1} << 24;
  const at::Tensor weight = torch::zeros({2}).requires_grad_();
  SGD optimizer({.lr = 0.1});
  optimizer.add_param_group({.params = {{"p", weight}}});
  StateDict state = test::clone_state(optimizer.state_dict());
  state = changed(state, "step", kLargest - 1);
  state = changed(state, "state.p.step", torch::full({}, static_cast<float>(kLargest - 1)));
  REQUIRE(optimizer.load_state_dict(state).ok());
  LRScheduler scheduler(optimizer, linear_lr(2 * kLargest));
  for (int64_t step = kLargest; step < kLargest + 4; ++step) {
    weight.mutable_grad() = torch::ones({2});
    optimizer.step_unless(torch::ones({}));  // skipped
    optimizer.step();
    scheduler.step();
    CHECK(detail::OptimizerParts::of(optimizer).counts.known() == step);
    CHECK(optimizer.lr() == 0.1 * linear_lr(2 * kLargest)->factor(step));
    CHECK(std::get<int64_t>(optimizer.state_dict().at("step")) == step);
  }
}

}  // namespace
}  // namespace trainkit
