#include "trainkit/nn/activation_checkpoint.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <mutex>
#include <optional>
#include <unordered_set>
#include <utility>

#include "distributed/replicas/replica_random.h"

namespace trainkit {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

/// States of the generators that operations on `device` draw from in this thread.
class RngState {
 public:
  explicit RngState(at::Device device) {
    save(current_cpu_generator());
    if (!device.is_cpu()) save(at::globalContext().defaultGenerator(device));
  }
  void restore() const {
    for (const auto& [generator, state] : states_) {
      at::Generator target = generator;
      const std::lock_guard lock(target.mutex());
      target.set_state(state);
    }
  }

 private:
  void save(at::Generator generator) {
    const std::lock_guard lock(generator.mutex());
    states_.emplace_back(generator, generator.get_state());
  }
  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

/// Sets the generators to `wanted` and restores them at the end of the scope.
class RngScope {
 public:
  RngScope(const std::optional<RngState>& wanted, at::Device device) {
    if (!wanted) return;
    before_.emplace(device);
    wanted->restore();
  }
  ~RngScope() {
    if (before_) before_->restore();
  }
  RngScope(const RngScope&) = delete;
  RngScope& operator=(const RngScope&) = delete;

 private:
  std::optional<RngState> before_;
};

/// Autocast settings of one device type in this thread.
struct AutocastState {
  at::DeviceType device;
  bool enabled;
  at::ScalarType dtype;
  bool cache;

  explicit AutocastState(at::DeviceType device)
      : device(device),
        enabled(at::autocast::is_autocast_enabled(device)),
        dtype(at::autocast::get_autocast_dtype(device)),
        cache(at::autocast::is_autocast_cache_enabled()) {}
  void apply() const {
    at::autocast::set_autocast_enabled(device, enabled);
    at::autocast::set_autocast_dtype(device, dtype);
    at::autocast::set_autocast_cache_enabled(cache);
  }
};

class AutocastScope {
 public:
  explicit AutocastScope(const AutocastState& wanted) : before_(wanted.device) {
    wanted.apply();
    at::autocast::increment_nesting();
  }
  ~AutocastScope() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    before_.apply();
  }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  AutocastState before_;
};

/// State needed to recompute the function; owned by the autograd graph.
struct Replay : torch::CustomClassHolder {
  std::function<at::Tensor(const at::Tensor&)> function;
  AutocastState autocast;
  std::optional<RngState> rng;

  Replay(std::function<at::Tensor(const at::Tensor&)> f, at::Device device, bool preserve_rng_state)
      : function(std::move(f)), autocast(device.type()) {
    if (preserve_rng_state) rng.emplace(device);
  }
};

// Note [Recomputation in backward]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// Forward runs the function without recording a graph (Function::forward disables grad mode) and saves the input and
// the parameters. Backward restores random numbers and autocast, runs the function again with grad mode on, and calls
// autograd::grad for the input and the parameters. Autograd then accumulates these gradients as usual, so that hooks,
// the Reducer and autograd::grad see one gradient per parameter. A backward() inside backward() would accumulate into
// .grad directly and bypass them; this is why parameters must be passed explicitly.
//
// Each parameter is passed once: autograd::grad returns its whole gradient for each of its occurrences, and autograd
// would add them up.
//
// Generators are restored after recomputation: otherwise later random numbers would depend on checkpointing.

struct CheckpointFunction : Function<CheckpointFunction> {
  static at::Tensor forward(AutogradContext* ctx, const c10::intrusive_ptr<Replay>& replay, const at::Tensor& input,
                            at::TensorList parameters) {
    variable_list saved{input};
    saved.insert(saved.end(), parameters.begin(), parameters.end());
    ctx->save_for_backward(saved);
    ctx->saved_data["replay"] = at::IValue::make_capsule(replay);
    return replay->function(input);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grad_outputs) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "checkpoint: double backward is not supported (create_graph = true)");
    const auto replay = c10::static_intrusive_pointer_cast<Replay>(ctx->saved_data["replay"].toCapsule());
    const variable_list saved = ctx->get_saved_variables();
    const bool wants_input = saved[0].requires_grad();

    variable_list wanted;
    at::Tensor output;
    const at::Tensor input = saved[0].detach().requires_grad_(wants_input);
    {
      const RngScope rng(replay->rng, input.device());
      const AutocastScope autocast(replay->autocast);
      const at::AutoGradMode grad_mode(true);
      // See Note [Recomputation in backward].
      output = replay->function(input);
    }
    if (wants_input) wanted.push_back(input);
    for (size_t i = 1; i < saved.size(); ++i) {
      if (saved[i].requires_grad()) wanted.push_back(saved[i]);
    }
    const variable_list found = torch::autograd::grad({output}, wanted, grad_outputs, /*retain_graph=*/false,
                                                      /*create_graph=*/false, /*allow_unused=*/true);
    variable_list gradients(1 + saved.size());  // undefined for the first argument
    size_t next = 0;
    for (size_t i = 0; i < saved.size(); ++i) {
      if (i == 0 ? wants_input : saved[i].requires_grad()) gradients[1 + i] = found[next++];
    }
    return gradients;
  }
};

/// Removes undefined and repeated tensors. See Note [Recomputation in backward].
void keep_each_once(std::vector<at::Tensor>& parameters) {
  std::unordered_set<const void*> seen;
  std::erase_if(parameters, [&](const at::Tensor& parameter) {
    return !parameter.defined() || !seen.insert(parameter.unsafeGetTensorImpl()).second;
  });
}

}  // namespace

at::Tensor checkpoint(std::function<at::Tensor(const at::Tensor&)> function, const at::Tensor& input,
                      std::vector<at::Tensor> parameters, ActivationCheckpointOptions options) {
  if (!at::GradMode::is_enabled()) return function(input);
  keep_each_once(parameters);
  auto replay = c10::make_intrusive<Replay>(std::move(function), input.device(), options.preserve_rng_state);
  return CheckpointFunction::apply(replay, input, at::TensorList(parameters));
}

at::Tensor checkpoint_sequential(const std::vector<CheckpointedLayer>& layers, int64_t segments,
                                 const at::Tensor& input, ActivationCheckpointOptions options) {
  const auto count = static_cast<int64_t>(layers.size());
  TORCH_CHECK_VALUE(segments >= 1 && segments <= count, "segments must be in 1..", count, ", got ", segments);
  at::Tensor x = input;
  for (int64_t segment = 0; segment < segments; ++segment) {
    const std::vector<CheckpointedLayer> part(layers.begin() + segment * count / segments,
                                              layers.begin() + (segment + 1) * count / segments);
    const auto run = [part](const at::Tensor& start) {
      at::Tensor y = start;
      for (const CheckpointedLayer& layer : part) y = layer.function(y);
      return y;
    };
    if (segment == segments - 1) return run(x);
    std::vector<at::Tensor> parameters;
    for (const CheckpointedLayer& layer : part) {
      parameters.insert(parameters.end(), layer.parameters.begin(), layer.parameters.end());
    }
    x = checkpoint(run, x, std::move(parameters), options);
  }
  return x;
}

}  // namespace trainkit
