#include "trainkit/core/state_dict.h"

#include <type_traits>

#include "trainkit/core/error.h"

namespace trainkit {
namespace {

absl::Status bad_state(std::string_view name, const char* problem, absl::StatusCode code) {
  return to_status(
      {.exit_code = ExitCode::kWeights, .id = "ckpt.state", .field = std::string(name), .problem = problem}, code);
}

}  // namespace

void merge_state(StateDict& whole, std::string_view prefix, const StateDict& part) {
  for (const auto& [name, value] : part) whole[std::string(prefix) + "." + name] = value;
}

StateDict sub_state(const StateDict& whole, std::string_view prefix) {
  StateDict part;
  const std::string start = std::string(prefix) + ".";
  for (auto it = whole.lower_bound(start); it != whole.end() && it->first.starts_with(start); ++it) {
    part.emplace(it->first.substr(start.size()), it->second);
  }
  return part;
}

template <class T>
absl::StatusOr<T> get_state(const StateDict& state, std::string_view name) {
  const auto it = state.find(name);
  if (it == state.end()) return bad_state(name, "is missing from the saved state", absl::StatusCode::kNotFound);
  if (const T* value = std::get_if<T>(&it->second)) return *value;
  return bad_state(name, "has a different type in the saved state", absl::StatusCode::kInvalidArgument);
}

template absl::StatusOr<bool> get_state<bool>(const StateDict&, std::string_view);
template absl::StatusOr<int64_t> get_state<int64_t>(const StateDict&, std::string_view);
template absl::StatusOr<double> get_state<double>(const StateDict&, std::string_view);
template absl::StatusOr<std::string> get_state<std::string>(const StateDict&, std::string_view);
template absl::StatusOr<std::vector<int64_t>> get_state<std::vector<int64_t>>(const StateDict&, std::string_view);
template absl::StatusOr<std::vector<double>> get_state<std::vector<double>>(const StateDict&, std::string_view);
template absl::StatusOr<at::Tensor> get_state<at::Tensor>(const StateDict&, std::string_view);

}  // namespace trainkit
