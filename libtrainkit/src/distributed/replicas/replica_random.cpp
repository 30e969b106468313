#include "distributed/replicas/replica_random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

namespace trainkit {
namespace {

// Note [Replica generators]
// ~~~~~~~~~~~~~~~~~~~~~~~~~
// Replicas run in threads. Threads that share one generator draw in an unpredictable order, and ranks with one seed
// drop the same neurons. Each replica therefore draws from a generator seeded from the step and the replica, which
// makes runs repeatable.
//
// Model code calls at::dropout and similar operations without a generator argument. To supply one, the guard includes a
// dispatch key in the thread-local set: the first guard registers every operator of LibTorch whose schema has a
// generator under it, with one kernel that adds the generator, excludes the key and calls the operator again. Operators
// without such an argument (rand, dropout, randperm) call one that has it. The key is TESTING_ONLY_GenericMode, which
// LibTorch itself does not use; all other operators fall through. Tensors on other devices are not redirected: on a GPU
// the device's default generator is seeded instead (ReplicaRandom).

constexpr c10::DispatchKey kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

thread_local at::Generator* replica_generator = nullptr;

/// Returns the index of an argument; nullopt if there is none of this name.
std::optional<size_t> argument_of(const c10::FunctionSchema& schema, std::string_view name) {
  const auto& all = schema.arguments();
  const auto found = std::find_if(all.begin(), all.end(), [&](const c10::Argument& one) { return one.name() == name; });
  return found == all.end() ? std::nullopt : std::optional(static_cast<size_t>(found - all.begin()));
}

/// Returns whether a call draws on the CPU: by its `device` argument, else its first tensor, else by default.
bool draws_on_cpu(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments) {
  const auto device = argument_of(schema, "device");
  if (device && arguments[*device].isDevice()) return arguments[*device].toDevice().is_cpu();
  const auto is_tensor = [](const c10::IValue& value) { return value.isTensor() && value.toTensor().defined(); };
  const auto tensor = std::find_if(arguments.begin(), arguments.end(), is_tensor);
  return tensor == arguments.end() || tensor->toTensor().is_cpu();
}

/// Runs an operator with the replica's generator, unless the caller has passed one.
void draw_from_replica(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const size_t count = schema.arguments().size(), first = stack->size() - count;
  c10::IValue& generator = (*stack)[first + *argument_of(schema, "generator")];
  const bool is_passed = generator.isGenerator() && generator.toGenerator().defined();
  if (!is_passed && replica_generator && draws_on_cpu(schema, c10::ArrayRef(*stack).slice(first))) {
    generator = *replica_generator;
  }
  const c10::impl::ExcludeDispatchKeyGuard below(kKey);
  op.callBoxed(stack);
}

/// Registers draw_from_replica, the first time. Programs without replicas on the CPU never do.
c10::DispatchKey registered_key() {
  static const bool once = [] {
    static torch::Library others(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
    others.fallback(torch::CppFunction::makeFallthrough());
    static torch::Library drawing(torch::Library::IMPL, "aten", kKey, __FILE__, __LINE__);
    c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
    for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
      const auto op = name.name.starts_with("aten::") ? dispatcher.findSchema(name) : std::nullopt;
      if (!op || !argument_of(op->schema(), "generator")) continue;
      drawing.impl(c10::toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&draw_from_replica>());
    }
    return true;
  }();
  static_cast<void>(once);
  return kKey;
}

}  // namespace

ReplicaRandomGuard::ReplicaRandomGuard(uint64_t seed)
    : generator_(at::make_generator<at::CPUGeneratorImpl>(seed)),
      previous_(std::exchange(replica_generator, &generator_)),
      include_(registered_key()) {}

ReplicaRandomGuard::~ReplicaRandomGuard() { replica_generator = previous_; }

bool draws_from_replica() { return replica_generator != nullptr; }

at::Generator current_cpu_generator() {
  return replica_generator ? *replica_generator : at::detail::getDefaultCPUGenerator();
}

}  // namespace trainkit
