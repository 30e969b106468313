#include "read_floats.h"
#include "trainkit/optim/adam.h"

namespace trainkit {
namespace {

// As in tests/reference/sparse_adam.py.
constexpr int64_t kTableRows = 40, kTableWidth = 19, kTableSteps = 50, kTableLookups = 24;

at::Tensor read_tensor(const std::string& path, at::ScalarType dtype, at::IntArrayRef shape) {
  return torch::from_file(path, /*shared=*/false, c10::multiply_integers(shape), dtype).reshape(shape).clone();
}

TEST_CASE("SparseAdam equals torch.optim.SparseAdam over 50 steps: repeated rows, missing gradients") {
  if (test::python().empty()) TRAINKIT_SKIP("TRAINKIT_PYTHON is not set");
  const test::TempDir dir;
  test::run_reference("sparse_adam.py", dir.path().string());
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const auto file = [&](const std::string& name) {
      return std::string(dir / (name + (dtype == at::kFloat ? ".float32" : ".float64")));
    };
    const at::Tensor init = read_tensor(file("init"), dtype, {2, kTableRows, kTableWidth});
    const at::Tensor ids = read_tensor(dir / "ids", at::kLong, {kTableSteps, kTableLookups});
    const at::Tensor grads = read_tensor(file("grads"), dtype, {kTableSteps, kTableLookups, kTableWidth});
    std::map<std::string, at::Tensor> python;
    for (const std::string kind : {"params", "exp_avg", "exp_avg_sq"})
      python[kind] = read_tensor(file(kind), dtype, {kTableSteps, 2, kTableRows, kTableWidth});
    std::vector<at::Tensor> tables = {init[0].clone().requires_grad_(), init[1].clone().requires_grad_()};
    SparseAdam optimizer({.lr = 3e-2, .betas = {0.8, 0.95}, .eps = 1e-6});
    optimizer.add_param_group({.params = {{"0", tables[0]}, {"1", tables[1]}}});
    for (int64_t step = 0; step < kTableSteps; ++step) {
      CAPTURE(dtype, step);
      for (size_t i = 0; i < 2; ++i) {
        tables[i].mutable_grad() =
            i == 1 && step % 3 == 1
                ? at::Tensor()
                : torch::sparse_coo_tensor(ids[step].unsqueeze(0), grads[step], {kTableRows, kTableWidth});
      }
      optimizer.step();
      const StateDict state = optimizer.state_dict();
      for (int64_t i = 0; i < 2; ++i) {
        const std::string name = "state." + std::to_string(i) + ".";
        // The same bits, but in float32 PyTorch's square roots (MKL's) may differ from the exact ones in the last bit.
        const double error = (tables[static_cast<size_t>(i)] - python["params"][step][i]).abs().max().item<double>();
        CHECK(error <= (dtype == at::kFloat ? 1e-6 : 0));
        CHECK(std::get<at::Tensor>(state.at(name + "exp_avg")).equal(python["exp_avg"][step][i]));
        CHECK(std::get<at::Tensor>(state.at(name + "exp_avg_sq")).equal(python["exp_avg_sq"][step][i]));
      }
    }
    CHECK((tables[0] - init[0]).abs().max().item<double>() > 0.1);  // and the rows moved
  }
}

}  // namespace
}  // namespace trainkit
