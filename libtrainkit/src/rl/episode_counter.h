#pragma once
// Return and length of episodes.

#include <absl/status/status.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "trainkit/core/state_dict.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {

/// Sums rewards and steps of the episode that each simulator is in, and averages those that end.
class EpisodeCounter {
 public:
  explicit EpisodeCounter(int64_t simulators)
      : returns_(static_cast<size_t>(simulators)), lengths_(static_cast<size_t>(simulators)) {}

  /// Adds a step of all simulators.
  void add(const float* reward, const bool* terminated, const bool* truncated) {
    for (size_t i = 0; i < returns_.size(); ++i) {
      returns_[i] += static_cast<double>(reward[i]);
      ++lengths_[i];
      if (!terminated[i] && !truncated[i]) continue;
      ++episodes_;
      return_sum_ += returns_[i];
      length_sum_ += lengths_[i];
      returns_[i] = 0;
      lengths_[i] = 0;
    }
  }

  /// Begins a new average. Episodes in progress continue.
  void begin() { return_sum_ = 0, length_sum_ = episodes_ = 0; }

  std::map<std::string, double> metrics() const {
    const auto count = static_cast<double>(episodes_);
    if (episodes_ == 0) return {{"episodes", 0}};
    return {{"episodes", count},
            {"episode_return", return_sum_ / count},
            {"episode_length", static_cast<double>(length_sum_) / count}};
  }

  StateDict state_dict() const {
    return {{"returns", returns_},
            {"lengths", lengths_},
            {"return_sum", return_sum_},
            {"length_sum", length_sum_},
            {"episodes", episodes_}};
  }
  absl::Status load_state_dict(const StateDict& state) {
    TRAINKIT_ASSIGN_OR_RETURN(const auto returns, get_state<std::vector<double>>(state, "returns"));
    TRAINKIT_ASSIGN_OR_RETURN(const auto lengths, get_state<std::vector<int64_t>>(state, "lengths"));
    if (returns.size() != returns_.size() || lengths.size() != lengths_.size()) {
      return absl::InvalidArgumentError("the checkpoint has another number of simulators");
    }
    TRAINKIT_ASSIGN_OR_RETURN(return_sum_, get_state<double>(state, "return_sum"));
    TRAINKIT_ASSIGN_OR_RETURN(length_sum_, get_state<int64_t>(state, "length_sum"));
    TRAINKIT_ASSIGN_OR_RETURN(episodes_, get_state<int64_t>(state, "episodes"));
    returns_ = returns;
    lengths_ = lengths;
    return absl::OkStatus();
  }

 private:
  std::vector<double> returns_;  // of the episodes in progress
  std::vector<int64_t> lengths_;
  double return_sum_ = 0;  // of those that ended since begin()
  int64_t length_sum_ = 0, episodes_ = 0;
};

}  // namespace trainkit::detail
