#pragma once
/// Compares and copies states in tests.

#include <torch/types.h>

#include "trainkit/core/state_dict.h"

namespace trainkit::test {

/// Returns whether two states have the same names, types and values, tensors bit for bit.
inline bool same_state(const StateDict& a, const StateDict& b) {
  const auto same = [](const StateValue& x, const StateValue& y) {
    if (x.index() != y.index()) return false;
    return std::visit(
        [&](const auto& value) {
          using T = std::decay_t<decltype(value)>;
          if constexpr (std::is_same_v<T, at::Tensor>) {
            return value.scalar_type() == std::get<T>(y).scalar_type() && torch::equal(value, std::get<T>(y));
          } else {
            return value == std::get<T>(y);
          }
        },
        x);
  };
  if (a.size() != b.size()) return false;
  for (auto i = a.begin(), j = b.begin(); i != a.end(); ++i, ++j) {
    if (i->first != j->first || !same(i->second, j->second)) return false;
  }
  return true;
}

/// A copy that later steps do not change.
inline StateDict clone_state(StateDict state) {
  for (auto& [name, value] : state) {
    if (auto* tensor = std::get_if<at::Tensor>(&value)) *tensor = tensor->clone();
  }
  return state;
}

}  // namespace trainkit::test
