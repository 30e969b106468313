#pragma once
// Steps of 16-bit parameters in float32.

#include <ATen/core/Tensor.h>

#include <vector>

namespace trainkit::detail {

/// Calls update(params, gradients, state), lists of tensors and a list of them, with float32 copies of 16-bit tensors
/// of the CPU, whose results it copies back; with the tensors themselves otherwise. Allocates memory for the copies.
template <class Update>
void in_float(at::TensorList params, at::TensorList gradients, const std::vector<std::vector<at::Tensor>>& state,
              Update update) {
  const auto type = params.front().scalar_type();
  if (!params.front().is_cpu() || (type != at::kBFloat16 && type != at::kHalf)) return update(params, gradients, state);
  const auto widen = [](at::TensorList narrow) {
    std::vector<at::Tensor> wide;
    for (const at::Tensor& tensor : narrow) wide.push_back(tensor.to(at::kFloat));
    return wide;
  };
  const auto narrow = [](const std::vector<at::Tensor>& wide, at::TensorList into) {
    for (size_t i = 0; i < wide.size(); ++i) into[i].copy_(wide[i]);
  };
  const std::vector<at::Tensor> wide_params = widen(params), wide_gradients = widen(gradients);
  std::vector<std::vector<at::Tensor>> wide_state;
  for (const auto& list : state) wide_state.push_back(widen(list));
  update(at::TensorList(wide_params), at::TensorList(wide_gradients), wide_state);
  narrow(wide_params, params);
  for (size_t k = 0; k < state.size(); ++k) narrow(wide_state[k], state[k]);
}

}  // namespace trainkit::detail
