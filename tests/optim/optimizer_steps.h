#pragma once
// Steps of an optimizer on tensors of many sizes, on any device.

#include <torch/torch.h>

#include <string>
#include <vector>

#include "test_util.h"
#include "trainkit/optim/rmsprop.h"

namespace trainkit::test {

/// The parameters after 5 steps, the third of them skipped.
template <class Kind, class Options>
std::vector<at::Tensor> run_steps(const Options& options, at::ScalarType dtype, at::Device device) {
  torch::manual_seed(1);
  std::vector<at::Tensor> params;
  ParamGroup group;
  for (const int64_t size : {1, 1023, 5000, 7}) {
    params.push_back(torch::randn({size}, at::kDouble).to(dtype).to(device).requires_grad_());
    group.params.push_back({"p" + std::to_string(size), params.back()});
  }
  params.push_back(torch::randn({4, 3, 5, 7}, at::kDouble)
                       .to(dtype)
                       .to(device)
                       .contiguous(at::MemoryFormat::ChannelsLast)
                       .requires_grad_());
  group.params.push_back({"images", params.back()});
  Kind optimizer(options);
  optimizer.add_param_group(group);
  for (int step = 0; step < 5; ++step) {
    for (at::Tensor& param : params) {
      param.mutable_grad() = torch::randn(param.sizes(), at::kDouble).to(dtype).to(device);
    }
    optimizer.step_unless(torch::full({}, step == 2 ? 1.0 : 0.0, device));
  }
  CHECK(optimizer.step_count().template item<int64_t>() == 4);
  std::vector<at::Tensor> result;
  for (const at::Tensor& param : params) result.push_back(param.detach().cpu().to(at::kDouble));
  return result;
}

inline void check_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b, double most) {
  for (size_t i = 0; i < a.size(); ++i) CHECK((a[i] - b[i]).abs().max().item<double>() < most);
}

inline const std::vector<RMSpropOptions> kRMSpropOptions = {
    {.lr = 0.01},
    {.lr = 0.003, .alpha = 0.8, .eps = 1e-4, .weight_decay = 0.1, .momentum = 0.9},
    {.lr = 0.003, .alpha = 0.7, .eps = 1e-4, .weight_decay = 0.1, .momentum = 0.5, .centered = true},
    {.lr = 0.003, .alpha = 0.7, .eps = 1e-4, .centered = true, .capturable = true}};

}  // namespace trainkit::test
