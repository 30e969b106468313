// Tests that no call of a step reads from the device. No device is needed: every read is one of a few operations (item,
// _local_scalar_dense, is_nonzero, equal, a copy to the CPU), which the test watches. With `capturable` the host code
// takes the GPU path. The CPU kernels of the fused steps read their own step counts and learning rates (the CUDA
// kernels do that on the device), so operations inside aten::_fused_* are ignored.

#include <ATen/record_function.h>

#include <set>

#include "test_util.h"
#include "trainkit/amp/grad_scaler.h"
#include "trainkit/optim/adam.h"
#include "trainkit/optim/lr_scheduler.h"
#include "trainkit/optim/optimizer.h"
#include "trainkit/optim/sgd.h"

namespace trainkit {
namespace {

thread_local int fused_depth = 0;
thread_local int64_t operations = 0;
thread_local std::vector<std::string> reads;

bool is_fused(const char* name) { return std::string_view(name).starts_with("aten::_fused_"); }

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& function) {
  static const std::set<std::string_view> kReads = {
      "aten::item",    "aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal",
      "aten::nonzero", "aten::masked_select",       "aten::unique",     "aten::allclose"};
  ++operations;
  if (is_fused(function.name())) ++fused_depth;
  if (fused_depth == 0 && kReads.contains(function.name())) reads.emplace_back(function.name());
  return nullptr;
}

void on_end(const at::RecordFunction& function, at::ObserverContext*) {
  if (is_fused(function.name())) --fused_depth;
}

/// Records the operations of this thread.
class ReadWatch {
 public:
  ReadWatch()
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(on_start, on_end).scopes({at::RecordScope::FUNCTION}))) {
    operations = 0;
    reads.clear();
  }
  ~ReadWatch() { at::removeCallback(handle_); }

 private:
  at::CallbackHandle handle_;
};

template <class O>
void check_no_reads(O optimizer) {
  at::Tensor weight = torch::randn({4, 4}).requires_grad_(), bias = torch::randn({4}).requires_grad_();
  optimizer.add_param_group({.params = {{"weight", weight}}});
  optimizer.add_param_group({.params = {{"bias", bias}}, .lr_multiple = 0.5});
  LRScheduler scheduler(optimizer, create_schedule({.name = "cosine", .total_steps = 9, .warmup_steps = 3}).value());
  GradScaler scaler({.growth_interval = 2});
  for (int step = 0; step < 12; ++step) {
    const double factor = step % 4 == 2 ? std::numeric_limits<double>::infinity() : 1.0;
    const at::Tensor loss = ((weight.sum() + bias.sum()) * factor);
    const ReadWatch watch;
    scaler.scale(loss).backward();
    if (step % 5 == 4) bias.mutable_grad().reset();
    if (step % 2 == 0) {
      scaler.unscale_(optimizer);
      clip_grad_norm_(optimizer, 1.0);
    }
    scaler.step(optimizer);
    scaler.update();
    scheduler.step();
    optimizer.zero_grad(step % 3 == 0);
    CHECK(reads == std::vector<std::string>{});
    CHECK(operations > 10);
  }
}

TEST_CASE("scale, unscale_, clip, step, update, schedule and zero_grad read nothing from the device") {
  check_no_reads(AdamW({.capturable = true}));
  check_no_reads(Adam({.capturable = true}));
  check_no_reads(SGD({.momentum = 0.9, .capturable = true}));
  check_no_reads(AdamW());
}

TEST_CASE("The watch detects a read") {
  const at::Tensor one = torch::ones({});
  const ReadWatch watch;
  CHECK(one.item<double>() == 1);
  CHECK(reads == std::vector<std::string>{"aten::item", "aten::_local_scalar_dense"});
}

}  // namespace
}  // namespace trainkit
