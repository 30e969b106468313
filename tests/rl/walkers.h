#pragma once
/// A small task of simulators whose rewards and ends are known in advance.

#include <torch/torch.h>

#include <vector>

#include "test_util.h"
#include "trainkit/core/random.h"
#include "trainkit/core/state_dict.h"
#include "trainkit/core/status.h"
#include "trainkit/rl/rollout_buffer.h"

namespace trainkit::test {

/// N walkers: each step adds the action to the position, which is the observation and the reward. An episode terminates
/// beyond 6 and is truncated after `limit` steps; then the walker is back at its start in the same step.
class Walkers {
 public:
  explicit Walkers(int64_t count, int64_t limit = 4) : limit_(limit), at_(count), age_(count) {}

  at::Tensor observation() const {
    at::Tensor all = torch::empty({size(), 1});
    for (int64_t i = 0; i < size(); ++i) all[i][0] = static_cast<float>(at_[static_cast<size_t>(i)]);
    return all;
  }
  StepOutcome step(const at::Tensor& action) {
    StepOutcome outcome = {torch::empty({size()}),
                           torch::zeros({size()}, torch::kBool),
                           torch::zeros({size()}, torch::kBool),
                           {torch::full({size(), 1}, -100.f)}};
    for (size_t i = 0; i < at_.size(); ++i) {
      const auto row = static_cast<int64_t>(i);
      at_[i] += action[row].item<int64_t>();
      ++age_[i];
      outcome.reward[row] = static_cast<float>(at_[i]);
      outcome.terminated[row] = at_[i] > 6;
      outcome.truncated[row] = age_[i] == limit_;
      if (at_[i] <= 6 && age_[i] < limit_) continue;
      outcome.final_observations[0][row][0] = static_cast<float>(at_[i]);
      at_[i] = age_[i] = 0;
    }
    return outcome;
  }

  StateDict state_dict() const { return {{"at", at_}, {"age", age_}}; }
  absl::Status load_state_dict(const StateDict& state) {
    TRAINKIT_ASSIGN_OR_RETURN(at_, get_state<std::vector<int64_t>>(state, "at"));
    TRAINKIT_ASSIGN_OR_RETURN(age_, get_state<std::vector<int64_t>>(state, "age"));
    return absl::OkStatus();
  }
  int64_t size() const { return std::ssize(at_); }

 private:
  int64_t limit_;
  std::vector<int64_t> at_, age_;
};

inline std::vector<FieldSpec> walker_fields() { return {{"obs", at::kFloat, {1}}, {"action", at::kLong, {}}}; }

/// The value that the tests give to an observation.
inline at::Tensor value_of(const at::Tensor& observation) { return observation.squeeze(-1) * 10; }

}  // namespace trainkit::test
