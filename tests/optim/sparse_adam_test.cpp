// Adam for rows of sparse gradients.
#include <torch/torch.h>

#include "core/tensors/coalesced.h"
#include "test_util.h"
#include "trainkit/core/error.h"
#include "trainkit/optim/adam.h"
#include "trainkit/optim/lr_scheduler.h"

namespace trainkit {
namespace {

using Catch::Contains;

at::Tensor table_of(int64_t rows, int64_t width, at::ScalarType dtype = at::kFloat) {
  torch::manual_seed(5);
  return torch::randn({rows, width}, dtype).requires_grad_();
}

/// A sparse gradient of a table with values in `rows`.
at::Tensor gradient_of(const at::Tensor& table, const std::vector<int64_t>& rows, double shift = 0) {
  const auto count = static_cast<int64_t>(rows.size());
  const at::Tensor values =
      torch::arange(count * table.size(1), at::kDouble).add(shift).sin().view({count, table.size(1)});
  return torch::sparse_coo_tensor(torch::tensor(rows).unsqueeze(0), values.to(table.scalar_type()), table.sizes());
}

at::Tensor state_of(const Optimizer& optimizer, const std::string& name) {
  return std::get<at::Tensor>(optimizer.state_dict().at("state." + name)).clone();
}

TEST_CASE("SparseAdam changes weights and state only in the rows of the gradient, repeated ones once") {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    CAPTURE(dtype);
    at::Tensor table = table_of(9, 5, dtype);
    const at::Tensor before = table.detach().clone();
    SparseAdam optimizer({.lr = 0.1});
    optimizer.add_param_group({.params = {{"table", table}}});
    table.mutable_grad() = gradient_of(table, {7, 2, 7});
    const at::Tensor sum = table.grad().to_dense();
    optimizer.step();
    for (int64_t row = 0; row < 9; ++row) {
      const bool moved = row == 2 || row == 7;
      CHECK(table[row].equal(before[row]) != moved);
      CHECK((state_of(optimizer, "table.exp_avg")[row].abs().sum().item<double>() > 0) == moved);
    }
    // The first step moves by lr in the direction of the gradient.
    CHECK((before - table - 0.1 * sum.sign()).abs().max().item<double>() < (dtype == at::kBFloat16 ? 0.02 : 1e-5));
    CHECK(state_of(optimizer, "table.step").item<double>() == 1);
  }
}

TEST_CASE("Any layout of the same sparse gradient gives SparseAdam the same bits") {
  std::vector<at::Tensor> results;
  for (const int kind : {0, 1, 2, 3}) {
    at::Tensor table = table_of(6, 4);
    if (kind == 3) table = table.detach().t().contiguous().t().requires_grad_();  // another order in memory
    SparseAdam optimizer({.lr = 0.1, .betas = {0.7, 0.9}});
    optimizer.add_param_group({.params = {{"table", table}}});
    for (int step = 0; step < 4; ++step) {
      at::Tensor gradient = gradient_of(table, {1, 4, 5}, step);
      if (kind == 1) gradient = gradient.coalesce();
      if (kind == 2) {  // an index for each value
        const at::Tensor places = torch::cartesian_prod({torch::tensor({1, 4, 5}), torch::arange(4)}).t();
        gradient = torch::sparse_coo_tensor(places, gradient._values().flatten(), table.sizes());
      }
      table.mutable_grad() = gradient;
      optimizer.step();
    }
    results.push_back(table.detach().contiguous());
  }
  for (const at::Tensor& result : results) CHECK(result.equal(results.front()));
}

TEST_CASE("SparseAdam gives a dense gradient Adam's update, next to sparse ones") {
  at::Tensor table = table_of(9, 5), dense = torch::ones({3}).requires_grad_(),
             other = torch::ones({3}).requires_grad_();
  SparseAdam optimizer({.lr = 0.1});
  optimizer.add_param_group({.params = {{"table", table}, {"dense", dense}}});
  Adam adam({.lr = 0.1});
  adam.add_param_group({.params = {{"dense", other}}});
  for (int step = 0; step < 3; ++step) {
    table.mutable_grad() = gradient_of(table, {step});
    dense.mutable_grad() = torch::arange(3, at::kFloat).sub(step);
    other.mutable_grad() = dense.grad();
    optimizer.step();
    adam.step();
  }
  CHECK(dense.equal(other));
  CHECK(state_of(optimizer, "dense.exp_avg_sq").equal(state_of(adam, "dense.exp_avg_sq")));
}

TEST_CASE("Clipping, scaling and a skipped step treat the values of a sparse gradient as any other") {
  at::Tensor table = table_of(9, 5);
  SparseAdam optimizer({.lr = 0.1});
  optimizer.add_param_group({.params = {{"table", table}}});
  table.mutable_grad() = gradient_of(table, {3, 1, 3});
  const at::Tensor sum = table.grad().to_dense();
  CHECK(clip_grad_norm_(optimizer, 0.5).item<double>() == Approx(sum.norm().item<double>()));
  CHECK(table.grad().is_coalesced());
  CHECK(table.grad().to_dense().norm().item<double>() == Approx(0.5));
  REQUIRE(optimizer.gradients().size() == 1);
  CHECK(optimizer.gradients()[0].sizes() == at::IntArrayRef({2, 5}));

  GradScaler scaler({.init_scale = 8});
  const at::Tensor before = table.detach().clone(), clipped = table.grad().to_dense();
  SparseAdam scaled({.lr = 0.1});
  scaled.add_param_group({.params = {{"table", table}}});
  scaler.scale(torch::ones({}));
  table.mutable_grad() = (clipped * 8).to_sparse(1);
  scaler.unscale_(scaled);
  CHECK(table.grad().to_dense().allclose(clipped));
  table.grad()._values()[0][0] = INFINITY;
  scaler.abandon();
  scaler.scale(torch::ones({}));
  scaler.step(scaled);
  scaler.update();
  CHECK(table.equal(before));
  CHECK(scaled.step_count().item<double>() == 0);
  CHECK(scaler.get_scale().item<double>() == 4);

  scaled.zero_grad(/*set_to_none=*/false);
  CHECK(table.grad()._nnz() == 0);
  scaled.step();  // no rows: counts as in PyTorch, and changes nothing
  CHECK(table.equal(before));
  CHECK(state_of(scaled, "table.step").item<double>() == 1);
}

TEST_CASE("SparseAdam's state and rate continue after a load as if nothing had happened") {
  const auto run = [](bool interrupted) {
    at::Tensor table = table_of(9, 5);
    auto optimizer = std::make_unique<SparseAdam>(SparseAdamOptions{.lr = 0.1});
    optimizer->add_param_group({.params = {{"table", table}}, .lr_multiple = 0.5});
    auto scheduler = std::make_unique<LRScheduler>(*optimizer, linear_lr(8));
    for (int64_t step = 0; step < 6; ++step) {
      if (interrupted && step == 3) {
        StateDict saved = optimizer->state_dict();
        for (auto& [name, value] : saved) {
          if (auto* tensor = std::get_if<at::Tensor>(&value)) *tensor = tensor->clone();
        }
        auto next = optimizer->create_like();
        next->add_param_group({.params = {{"table", table}}});
        REQUIRE(next->load_state_dict(saved).ok());
        scheduler.reset();
        optimizer.reset(dynamic_cast<SparseAdam*>(next.release()));
        scheduler = std::make_unique<LRScheduler>(*optimizer, linear_lr(8));
        REQUIRE(scheduler->load_state_dict({{"base_lr", 0.1}, {"first_step", int64_t{0}}}).ok());
      }
      table.mutable_grad() = gradient_of(table, {step, 8 - step, step}, static_cast<double>(step));
      optimizer->step();
      scheduler->step();
    }
    return table.detach();
  };
  CHECK(run(false).equal(run(true)));
  AdamW other;
  at::Tensor table = table_of(9, 5);
  other.add_param_group({.params = {{"table", table}}});
  SparseAdam optimizer;
  optimizer.add_param_group({.params = {{"table", table}}});
  CHECK_THAT(error_line(other.load_state_dict(optimizer.state_dict())), Contains("sparse_adam"));
}

TEST_CASE("SparseAdam refuses options out of range and a group with weight decay") {
  CHECK_THROWS_WITH(SparseAdam({.lr = -1, .eps = -2}), Contains("SparseAdam: lr") && Contains("eps"));
  SparseAdam optimizer;
  CHECK_THROWS_WITH(
      optimizer.add_param_group({.params = {{"table", table_of(2, 2)}}, .weight_decay = 0.1}),
      Contains("SparseAdam: no weight decay, got 0.1 for the group of 'table': set it to 0, or use AdamW"));
}

TEST_CASE("A sparse gradient in order is marked as coalesced and not copied") {
  at::Tensor table = table_of(9, 5);
  const at::Tensor ordered = gradient_of(table, {1, 4, 8}), shuffled = gradient_of(table, {4, 1, 8}),
                   repeated = gradient_of(table, {1, 1, 8});
  const at::Tensor same = detail::coalesced(ordered);
  CHECK(same.is_coalesced());
  CHECK(same._values().data_ptr() == ordered._values().data_ptr());
  for (const at::Tensor& gradient : {shuffled, repeated}) {
    CHECK(detail::coalesced(gradient)._values().data_ptr() != gradient._values().data_ptr());
    CHECK(detail::coalesced(gradient).to_dense().equal(gradient.to_dense()));
  }
}

}  // namespace
}  // namespace trainkit
