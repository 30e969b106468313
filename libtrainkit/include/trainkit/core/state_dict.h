#pragma once
/// Checkpoint state: a flat map from dotted names to values.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace trainkit {

using StateValue =
    std::variant<bool, int64_t, double, std::string, std::vector<int64_t>, std::vector<double>, at::Tensor>;

/// Maps dotted paths ("optimizer.state.blocks.0.weight.exp_avg") to values. Every component with state has
///   StateDict state_dict() const;
///   absl::Status load_state_dict(const StateDict& state);
/// If load_state_dict returns an error, it leaves the object unchanged.
/// Tensors in a StateDict may share memory with the live object: clone tensors that must outlive a step.
using StateDict = std::map<std::string, StateValue, std::less<>>;

/// Copies `part` into `whole` under "<prefix>.<name>".
void merge_state(StateDict& whole, std::string_view prefix, const StateDict& part);

/// Returns the entries of `whole` under "<prefix>.", without the prefix.
StateDict sub_state(const StateDict& whole, std::string_view prefix);

/// Returns the value of `name` as type T (one of StateValue's types). If the entry is missing or has another type,
/// returns an Error of exit code 5 (kNotFound, kInvalidArgument) that names the entry.
template <class T>
absl::StatusOr<T> get_state(const StateDict& state, std::string_view name);

extern template absl::StatusOr<bool> get_state<bool>(const StateDict&, std::string_view);
extern template absl::StatusOr<int64_t> get_state<int64_t>(const StateDict&, std::string_view);
extern template absl::StatusOr<double> get_state<double>(const StateDict&, std::string_view);
extern template absl::StatusOr<std::string> get_state<std::string>(const StateDict&, std::string_view);
extern template absl::StatusOr<std::vector<int64_t>> get_state<std::vector<int64_t>>(const StateDict&,
                                                                                     std::string_view);
extern template absl::StatusOr<std::vector<double>> get_state<std::vector<double>>(const StateDict&, std::string_view);
extern template absl::StatusOr<at::Tensor> get_state<at::Tensor>(const StateDict&, std::string_view);

}  // namespace trainkit
