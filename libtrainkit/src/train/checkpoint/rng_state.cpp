#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <fmt/format.h>

#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/train/checkpoint.h"

namespace trainkit {
namespace {

/// Lists the generators in use, by name.
std::vector<std::pair<std::string, at::Generator>> generators() {
  std::vector<std::pair<std::string, at::Generator>> all;
  at::Context& context = at::globalContext();
  all.emplace_back("cpu", context.defaultGenerator(at::kCPU));
  if (!at::Context::hasCUDA()) return all;
  const auto count = at::detail::getCUDAHooks().deviceCount();
  for (c10::DeviceIndex i = 0; i < count; ++i) {
    // A device without a CUDA context has drawn no numbers, and asking for its generator would create a context.
    if (!at::detail::getCUDAHooks().hasPrimaryContext(i)) continue;
    all.emplace_back(fmt::format("cuda.{}", static_cast<int>(i)), context.defaultGenerator(at::Device(at::kCUDA, i)));
  }
  return all;
}

at::Tensor state_of(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

absl::Status refuse_generator(const std::string& name, std::string problem) {
  return to_status({.exit_code = ExitCode::kWeights, .id = "ckpt.state", .field = name, .problem = std::move(problem)},
                   absl::StatusCode::kInvalidArgument);
}

}  // namespace

StateDict default_generator_state() {
  StateDict state;
  for (const auto& [name, generator] : generators()) state[name] = state_of(generator);
  return state;
}

absl::Status load_default_generator_state(const StateDict& state) {
  auto here = generators();
  std::vector<std::pair<at::Generator*, at::Tensor>> checked;
  for (auto& [name, generator] : here) {
    if (name != "cpu" && !state.contains(name)) continue;  // saved without this device: keep its generator
    TRAINKIT_ASSIGN_OR_RETURN(auto saved, get_state<at::Tensor>(state, name));
    saved = saved.clone();  // LibTorch reads a view, such as those of snapshot(), beyond its memory
    try {
      // Tries the state on a copy: set_state throws if the size or the engine's numbers are wrong.
      at::Generator copy = [&, lock = std::lock_guard(generator.mutex())] { return generator.clone(); }();
      copy.set_state(saved);
    } catch (...) {
      return refuse_generator(
          name, "is not a state of this generator: " + std::string(status_from_current_exception().message()));
    }
    checked.emplace_back(&generator, saved);
  }
  for (const auto& [generator, saved] : checked) {
    const std::lock_guard lock(generator->mutex());
    generator->set_state(saved);
  }
  return absl::OkStatus();
}

}  // namespace trainkit
