#include "train/graph/step_trace.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <string_view>

#include "core/tensors/recorded.h"

namespace trainkit::detail {
namespace {

// Note [Comparing steps]
// ~~~~~~~~~~~~~~~~~~~~~~
// A captured step repeats the operations and host values of its capture. StepTrace records what would differ between
// steps: the names of the operations in order, and a hash of their arguments. The hash covers dtype, device and sizes
// of each tensor and the values of host numbers (scalars, wrapped numbers, 0-dim CPU tensors), since a kernel receives
// those by value. It does not cover addresses: eager steps allocate anew, and step_state() checks the addresses that a
// graph depends on.
// A step is rejected (StepRecord::obstacle) if it reads a device value, copies between host and device, uses a
// generator of its own, or advances the CPU generator, since none of these can be replayed.
// Exceptions, because eager and captured steps legitimately differ there:
// - Fused optimizer kernels. On the CPU they read step counts and learning rates of the host.
// - Attention. Its kernels receive the generator's state (arguments named philox_*) as host numbers in an eager step
//   and as device tensors in a graph, where each replay rewrites them. Everything else that they do follows from their
//   inputs.
// - Exchanges between replicas or ranks (ExchangeScope): eager steps of ranks agree on the hosts and graphs on the
//   devices, and c10d records each collective with its sequence number.
// Replicas on several devices run in threads, in any order relative to one another. A thread has one current device, so
// the operations are recorded by device; within each the order is that of the model.
// opaque_depth is thread-local, since operations nest within a thread and autograd's threads run concurrently.

thread_local int opaque_depth = 0;

/// Operations whose inner operations are not recorded, see Note [Comparing steps].
bool is_opaque(const at::RecordFunction& operation) {
  const std::string_view name = operation.name();
  const bool is_attention = name.starts_with("aten::_") && name.find("_attention") != std::string_view::npos &&
                            name.find("_attention_math") == std::string_view::npos;
  return is_attention || name.starts_with("aten::_fused_");
}

/// Operations that are not recorded themselves either.
bool is_left_out(const at::RecordFunction& operation) {
  const std::string_view name = operation.name();
  return name == ExchangeScope::kName || name == "record_param_comms";
}

/// Returns whether a tensor is a number of the host that a kernel receives by value.
bool is_number(const at::Tensor& tensor, at::Device device) {
  return tensor.unsafeGetTensorImpl()->is_wrapped_number() ||
         (tensor.is_cpu() && !device.is_cpu() && tensor.dim() == 0 && tensor.has_storage());
}

/// Returns the indices of the inputs that carry the generator's state of an attention, see Note [Comparing steps].
std::set<size_t> generator_states(const at::RecordFunction& operation) {
  std::set<size_t> states;
  if (std::string_view(operation.name()).find("_attention") == std::string_view::npos) return states;
  const auto schema = operation.operator_schema();
  for (size_t i = 0; schema && i < schema->arguments().size(); ++i) {
    if (schema->arguments()[i].name().starts_with("philox_")) states.insert(i);
  }
  return states;
}

/// Hashes the arguments of an operation.
class Hash {
 public:
  explicit Hash(at::Device device) : device_(device) {}

  void add(const c10::IValue& value) {
    add(static_cast<uint64_t>(value.isTensor() ? 1 : value.isList() ? 2 : 3));
    if (value.isTensor()) {
      add(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) add(tensor);
    } else if (value.isList()) {
      for (const c10::IValue& element : value.toListRef()) add(element);
    } else if (value.isDouble()) {
      add(std::bit_cast<uint64_t>(value.toDouble()));
    } else if (value.isInt()) {
      add(static_cast<uint64_t>(value.toInt()));
    } else if (value.isBool()) {
      add(static_cast<uint64_t>(value.toBool()));
    } else if (value.isString()) {
      for (const char letter : value.toStringRef()) add(static_cast<uint64_t>(letter));
    }
  }

  uint64_t value() const { return value_; }

 private:
  // FNV-1a, a word at a time.
  void add(uint64_t word) { value_ = (value_ ^ word) * 0x100000001b3u; }

  void add(const at::Tensor& tensor) {
    if (!tensor.defined()) return add(uint64_t{0});
    add(static_cast<uint64_t>(tensor.device().type()));
    add(static_cast<uint64_t>(tensor.scalar_type()));
    for (const int64_t size : tensor.sizes()) add(static_cast<uint64_t>(size));
    if (!is_number(tensor, device_)) return;
    uint64_t bytes[2] = {0, 0};
    std::memcpy(bytes, tensor.const_data_ptr(), std::min<size_t>(tensor.element_size(), sizeof bytes));
    add(bytes[0]);
    add(bytes[1]);
  }

  at::Device device_;
  uint64_t value_ = 0xcbf29ce484222325u;
};

bool is_on(const c10::IValue& value, c10::DeviceType type) {
  return value.isTensor() && value.toTensor().defined() && value.toTensor().device().type() == type;
}

/// Returns whether the host needs the operation's result before it can continue.
bool reads_device(std::string_view name) {
  static const std::set<std::string_view> kReads = {"aten::item",       "aten::_local_scalar_dense",
                                                    "aten::is_nonzero", "aten::equal",
                                                    "aten::nonzero",    "aten::masked_select",
                                                    "aten::allclose",   "aten::_unique",
                                                    "aten::_unique2",   "aten::unique",
                                                    "aten::unique_dim", "aten::unique_consecutive"};
  return kReads.contains(name);
}

at::Tensor state_of(at::Generator& generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

}  // namespace

std::string difference(const StepRecord& before, const StepRecord& after) {
  const size_t common = std::min(before.operations.size(), after.operations.size());
  for (size_t i = 0; i < common; ++i) {
    const auto &old = before.operations[i], &now = after.operations[i];
    if (old.name != now.name) return fmt::format("{} instead of {}", now.name, old.name);
    if (old.arguments != now.arguments) return fmt::format("{} has different shapes or numbers", now.name);
  }
  if (before.operations.size() == after.operations.size()) return "";
  return fmt::format("{} operations instead of {}", after.operations.size(), before.operations.size());
}

/// Records operations until record() moves them out.
class StepTrace::Observer final : public OperationObserver {
 public:
  explicit Observer(at::Device device) : device_(device) {}

  void begin(const at::RecordFunction& operation) override {
    const bool left_out = is_left_out(operation);
    if (opaque_depth == 0 && !left_out) add(operation);
    if (left_out || is_opaque(operation)) ++opaque_depth;
  }
  void end(const at::RecordFunction& operation) override {
    if (is_left_out(operation) || is_opaque(operation)) --opaque_depth;
  }
  void failed() override {
    const std::lock_guard lock(mutex_);
    failed_ = true;
  }

  StepRecord record() {
    const std::lock_guard lock(mutex_);
    if (failed_ && record_.obstacle.empty()) record_.obstacle = "the host ran out of memory while recording it";
    for (auto& [device, operations] : operations_) {
      std::move(operations.begin(), operations.end(), std::back_inserter(record_.operations));
    }
    return std::move(record_);
  }

 private:
  void add(const at::RecordFunction& operation);
  int current_device() const {
    return device_.is_cpu() ? 0 : c10::impl::VirtualGuardImpl(device_.type()).getDevice().index();
  }
  void look_for_obstacle(const at::RecordFunction& operation);

  std::mutex mutex_;
  at::Device device_;
  StepRecord record_;
  std::map<int, std::vector<StepRecord::Operation>> operations_;  // by current device, see Note [Comparing steps]
  bool failed_ = false;
};

StepTrace::StepTrace(at::Device device)
    : host_generator_(at::globalContext().defaultGenerator(at::kCPU)),
      host_state_(state_of(host_generator_)),
      observer_(std::make_shared<Observer>(device)) {
  watch_.emplace(WatchPurpose::kTrace, observer_);
}

StepTrace::~StepTrace() = default;

StepRecord StepTrace::finish() {
  watch_.reset();
  StepRecord record = observer_->record();
  const at::Tensor now = state_of(host_generator_);
  const bool same = std::memcmp(now.const_data_ptr(), host_state_.const_data_ptr(), now.nbytes()) == 0;
  if (!same && record.obstacle.empty()) record.obstacle = "random numbers are drawn on the CPU";
  return record;
}

void StepTrace::Observer::add(const at::RecordFunction& operation) {
  Hash hash(device_);
  const std::set<size_t> left_out = generator_states(operation);
  const auto inputs = operation.inputs();
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!left_out.contains(i)) hash.add(inputs[i]);
  }
  const std::lock_guard lock(mutex_);
  operations_[current_device()].push_back({operation.name(), hash.value()});
  if (record_.obstacle.empty()) look_for_obstacle(operation);
}

void StepTrace::Observer::look_for_obstacle(const at::RecordFunction& operation) {
  const std::string_view name = operation.name();
  const auto inputs = operation.inputs();
  const auto any = [&](const auto& test) { return std::any_of(inputs.begin(), inputs.end(), test); };
  const auto on_device = [&](const c10::IValue& input) { return is_on(input, device_.type()); };
  const bool copies = name == "aten::copy_" && inputs.size() > 1 && on_device(inputs[0]) != on_device(inputs[1]);
  if (reads_device(name) && any(on_device)) {
    record_.obstacle = fmt::format("{} reads from the device", name);
  } else if (copies) {
    record_.obstacle = on_device(inputs[0]) ? "aten::copy_ copies from host memory" : "aten::copy_ copies to the host";
  } else if (any([](const c10::IValue& input) { return input.isGenerator(); })) {
    record_.obstacle = fmt::format("{} uses its own random generator", name);
  }
}

}  // namespace trainkit::detail
