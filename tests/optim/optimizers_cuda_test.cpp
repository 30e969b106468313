// RMSprop and Adagrad on a GPU.
#include "optimizer_steps.h"
#include "trainkit/optim/adagrad.h"

namespace trainkit {
namespace {

using namespace test;

const at::Device kDevice(at::kCUDA, 0);

#define SKIP_WITHOUT_GPU() \
  if (!torch::cuda::is_available()) TRAINKIT_SKIP("no GPU that LibTorch can use")

TEST_CASE("RMSprop on a GPU equals that on the CPU within rounding", "[optim][gpu]") {
  SKIP_WITHOUT_GPU();
  for (const RMSpropOptions& options : kRMSpropOptions) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      check_equal(run_steps<RMSprop>(options, dtype, kDevice), run_steps<RMSprop>(options, dtype, at::kCPU),
                  dtype == at::kFloat ? 1e-5 : 1e-7);
    }
  }
}

TEST_CASE("Adagrad on a GPU equals that on the CPU within rounding", "[optim][gpu]") {
  SKIP_WITHOUT_GPU();
  for (const bool capturable : {false, true}) {
    const AdagradOptions options{
        .lr = 0.1, .lr_decay = 0.2, .weight_decay = 0.1, .initial_accumulator_value = 0.1, .capturable = capturable};
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      check_equal(run_steps<Adagrad>(options, dtype, kDevice), run_steps<Adagrad>(options, dtype, at::kCPU),
                  dtype == at::kFloat ? 1e-5 : 1e-7);
    }
  }
}

}  // namespace
}  // namespace trainkit
