#include "train/checkpoint/generators.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/cat.h>
#include <fmt/format.h>

#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "distributed/group/gather_bytes.h"
#include "trainkit/core/error.h"
#include "trainkit/core/random.h"
#include "trainkit/core/status.h"
#include "trainkit/train/checkpoint.h"

namespace trainkit {
namespace {

at::Tensor generator_state(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void put_generator_state(at::Generator generator, const at::Tensor& state) {
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

absl::Status refuse_generator(const std::string& name, std::string problem) {
  return to_status({.exit_code = ExitCode::kWeights, .id = "ckpt.state", .field = name, .problem = std::move(problem)},
                   absl::StatusCode::kInvalidArgument);
}

/// Checks on a copy that `generator` accepts `state`: set_state throws if the size or the engine's numbers are wrong.
absl::Status check_generator_state(at::Generator generator, const at::Tensor& state, const std::string& name) {
  try {
    at::Generator copy = [&, lock = std::lock_guard(generator.mutex())] { return generator.clone(); }();
    copy.set_state(state.clone());
  } catch (...) {
    return refuse_generator(
        name, "is not a state of this generator: " + std::string(status_from_current_exception().message()));
  }
  return absl::OkStatus();
}

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

}  // namespace

StateDict default_generator_state() {
  StateDict state;
  for (const auto& [name, generator] : generators()) state[name] = generator_state(generator);
  return state;
}

absl::Status load_default_generator_state(const StateDict& state) {
  std::vector<std::pair<at::Generator, at::Tensor>> checked;
  for (const auto& [name, generator] : generators()) {
    if (name != "cpu" && !state.contains(name)) continue;  // saved without this device: keep its generator
    TRAINKIT_ASSIGN_OR_RETURN(const at::Tensor saved, get_state<at::Tensor>(state, name));
    TRAINKIT_RETURN_IF_ERROR(check_generator_state(generator, saved, name));
    checked.emplace_back(generator,
                         saved.clone());  // LibTorch reads a view, such as those of snapshot(), beyond its memory
  }
  for (const auto& [generator, saved] : checked) put_generator_state(generator, saved);
  return absl::OkStatus();
}

namespace detail {
namespace {

constexpr char kCpu[] = "rng.cpu";
constexpr char kCuda[] = "rng.cuda.";
constexpr char kRanks[] = "rng_ranks";

at::Generator generator_of(at::Device device) { return at::globalContext().defaultGenerator(device); }

/// Saved generator states of one rank.
struct SavedGenerators {
  at::Tensor cpu;
  std::optional<at::Tensor> device;
};

/// Reads the states of a checkpoint's first process.
absl::StatusOr<SavedGenerators> saved_alone(const StateDict& state) {
  SavedGenerators saved;
  TRAINKIT_ASSIGN_OR_RETURN(saved.cpu, get_state<at::Tensor>(state, kCpu));
  const std::string first = kCuda + std::string("0");
  if (state.contains(first)) {
    TRAINKIT_ASSIGN_OR_RETURN(saved.device, get_state<at::Tensor>(state, first));
  }
  return saved;
}

/// Reads the states of all ranks, in order.
absl::StatusOr<std::vector<SavedGenerators>> saved_generators(const StateDict& state) {
  TRAINKIT_ASSIGN_OR_RETURN(const SavedGenerators alone, saved_alone(state));
  if (!state.contains(kRanks)) return std::vector<SavedGenerators>{alone};
  TRAINKIT_ASSIGN_OR_RETURN(const at::Tensor rows, get_state<at::Tensor>(state, kRanks));
  const int64_t cpu_bytes = alone.cpu.numel();
  if (rows.dim() != 2 || rows.size(0) < 1 || rows.size(1) < cpu_bytes || rows.scalar_type() != at::kByte)
    return refuse_generator(kRanks, "does not have one row of bytes per rank");
  std::vector<SavedGenerators> all;
  for (int64_t rank = 0; rank < rows.size(0); ++rank) {
    SavedGenerators saved{rows[rank].slice(0, 0, cpu_bytes).clone(), std::nullopt};
    if (rows.size(1) > cpu_bytes) saved.device = rows[rank].slice(0, cpu_bytes).clone();
    all.push_back(std::move(saved));
  }
  return all;
}

}  // namespace

absl::StatusOr<StateDict> collect_generators(const DeviceReplicator& devices) {
  StateDict state{{kCpu, generator_state(generator_of(at::kCPU))}};
  for (int64_t replica = 0; replica < devices.replicas(); ++replica) {
    const at::Device device = devices.device(replica);
    if (!device.is_cpu()) state[kCuda + std::to_string(replica)] = generator_state(generator_of(device));
  }
  ProcessGroup* group = devices.process_group();
  if (!group) return state;
  std::vector<at::Tensor> own;
  for (const auto& [name, value] : state) own.push_back(std::get<at::Tensor>(value));
  TRAINKIT_ASSIGN_OR_RETURN(state[kRanks], gather_bytes(*group, at::cat(own), "random generators"));
  return state;
}

absl::Status load_generators(const StateDict& state, const DeviceReplicator& devices, uint64_t seed) {
  TRAINKIT_ASSIGN_OR_RETURN(const std::vector<SavedGenerators> all, saved_generators(state));
  const at::Device device = devices.device();
  for (const SavedGenerators& saved : all) {  // all ranks' states, so that all ranks decide alike
    TRAINKIT_RETURN_IF_ERROR(check_generator_state(generator_of(at::kCPU), saved.cpu, kCpu));
    if (saved.device && !device.is_cpu())
      TRAINKIT_RETURN_IF_ERROR(check_generator_state(generator_of(device), *saved.device, std::string(kCuda) + "0"));
  }
  const int64_t rank = devices.process_group() ? devices.process_group()->rank() : 0;
  const bool is_new = rank >= std::ssize(all);
  const SavedGenerators& mine = all[is_new ? 0 : static_cast<size_t>(rank)];
  put_generator_state(generator_of(at::kCPU), mine.cpu);
  if (device.is_cpu()) return absl::OkStatus();
  if (!is_new && mine.device) {
    put_generator_state(generator_of(device), *mine.device);
  } else {
    at::Generator generator = generator_of(device);
    const std::lock_guard lock(generator.mutex());
    generator.set_current_seed(hash_key(seed, rank));
  }
  return absl::OkStatus();
}

std::string kind_of_device(const StateDict& state) {
  const auto first = state.lower_bound(kCuda);
  return first != state.end() && first->first.starts_with(kCuda) ? "cuda" : "cpu";
}

}  // namespace detail
}  // namespace trainkit
