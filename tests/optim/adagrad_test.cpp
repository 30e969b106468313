// Adagrad of dense and sparse gradients.
#include "trainkit/optim/adagrad.h"

#include <torch/torch.h>

#include "test_util.h"

namespace trainkit {
namespace {

using Catch::Contains;

at::Tensor sum_of(const Optimizer& optimizer) {
  return std::get<at::Tensor>(optimizer.state_dict().at("state.table.sum")).clone();
}

TEST_CASE("Adagrad's sum begins at initial_accumulator_value, also of a parameter without a gradient") {
  at::Tensor table = torch::ones({3, 2}).requires_grad_(), idle = torch::ones({4}).requires_grad_();
  Adagrad optimizer({.lr = 1, .initial_accumulator_value = 0.75});
  optimizer.add_param_group({.params = {{"table", table}, {"idle", idle}}});
  CHECK(sum_of(optimizer).equal(torch::full({3, 2}, 0.75)));
  table.mutable_grad() = torch::full({3, 2}, 0.5);
  optimizer.step();
  CHECK(sum_of(optimizer).equal(torch::ones({3, 2})));
  CHECK(torch::allclose(table, torch::full({3, 2}, 0.5)));  // 1 - 0.5 / sqrt(1)
  CHECK(std::get<at::Tensor>(optimizer.state_dict().at("state.idle.sum")).equal(torch::full({4}, 0.75)));
  CHECK(idle.equal(torch::ones({4})));
}

TEST_CASE("A sparse gradient gives Adagrad the update of the same dense one, in its rows alone") {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    for (const bool capturable : {false, true}) {
      CAPTURE(dtype, capturable);
      torch::manual_seed(1);
      const at::Tensor start = torch::randn({9, 5}, dtype);
      at::Tensor table = start.clone().requires_grad_(), dense = start.clone().requires_grad_();
      const AdagradOptions options{
          .lr = 0.1, .lr_decay = 0.5, .initial_accumulator_value = 0.1, .capturable = capturable};
      Adagrad sparse(options), other(options);
      sparse.add_param_group({.params = {{"table", table}}});
      other.add_param_group({.params = {{"table", dense}}});
      for (int step = 0; step < 4; ++step) {
        const at::Tensor rows = torch::tensor({7, 2, 7}), values = torch::randn({3, 5}, dtype);
        table.mutable_grad() = torch::sparse_coo_tensor(rows.unsqueeze(0), values, {9, 5});
        dense.mutable_grad() = table.grad().to_dense();
        sparse.step();
        other.step();
      }
      const double most = dtype == at::kBFloat16 ? 0.02 : dtype == at::kFloat ? 1e-6 : 1e-14;
      CHECK((table - dense).abs().max().item<double>() < most);
      CHECK((sum_of(sparse) - sum_of(other)).abs().max().item<double>() < 5 * most);
      CHECK(table[0].equal(start[0]));
      // A skipped step keeps all bits.
      const at::Tensor before = table.detach().clone();
      sparse.step_unless(torch::ones({}));
      CHECK(table.equal(before));
    }
  }
}

TEST_CASE("Adagrad of a sparse gradient on a GPU changes its rows, and none in a skipped step", "[optim][gpu]") {
  // LibTorch sorts the rows with a library that the simulated device lacks.
  if (!torch::cuda::is_available()) TRAINKIT_SKIP("no GPU that LibTorch can use");
  const at::Device device(at::kCUDA, 0);
  for (const bool capturable : {false, true}) {
    at::Tensor table = torch::ones({9, 5}, device).requires_grad_();
    Adagrad optimizer({.lr = 0.5, .capturable = capturable});
    optimizer.add_param_group({.params = {{"table", table}}});
    const auto step = [&](double found_inf) {
      const at::Tensor rows = torch::tensor({7, 2}, at::kLong).unsqueeze(0).to(device);
      table.mutable_grad() = torch::sparse_coo_tensor(rows, torch::full({2, 5}, 3.0F).to(device), {9, 5});
      optimizer.step_unless(torch::full({}, found_inf).to(at::kFloat).to(device));
    };
    step(1);
    CHECK(table.cpu().equal(torch::ones({9, 5})));
    step(0);
    const at::Tensor now = table.detach().cpu();
    CHECK(torch::allclose(now[2], torch::full({5}, 0.5)));
    CHECK(now[3].equal(torch::ones({5})));
  }
}

TEST_CASE("Adagrad refuses weight decay with sparse gradients, and options out of range") {
  at::Tensor table = torch::ones({3, 2}).requires_grad_();
  Adagrad optimizer({.weight_decay = 0.1});
  optimizer.add_param_group({.params = {{"table", table}}});
  table.mutable_grad() = torch::sparse_coo_tensor(torch::tensor({1}).unsqueeze(0), torch::ones({1, 2}), {3, 2});
  CHECK_THROWS_WITH(optimizer.step(), Contains("no weight decay with sparse gradients"));
  CHECK_THROWS_WITH(Adagrad({.lr_decay = -1, .initial_accumulator_value = -2, .eps = -3}),
                    Contains("lr_decay") && Contains("initial_accumulator_value") && Contains("eps"));
}

}  // namespace
}  // namespace trainkit
