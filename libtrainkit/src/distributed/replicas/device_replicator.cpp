#include "trainkit/distributed/device_replicator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <mutex>
#include <numeric>
#include <set>

#include "core/base/user_exception.h"
#include "core/machine/allocation_guard.h"
#include "distributed/replicas/data_parallel.h"
#include "distributed/replicas/distributed.h"
#include "distributed/replicas/replica_tools.h"
#include "distributed/replicas/single_device.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/distributed/sync_batch_norm.h"

namespace trainkit {
namespace {

int device_count(at::DeviceType type) {
  if (type == at::kCPU) return 1;
  return c10::impl::hasDeviceGuardImpl(type) ? c10::impl::getDeviceGuardImpl(type)->deviceCount() : 0;
}

absl::Status usage_error(std::string field, std::string problem, std::string got, std::string expected,
                         std::string hint = {}) {
  return to_status({.exit_code = ExitCode::kUsage,
                    .id = "cli.device",
                    .field = std::move(field),
                    .problem = std::move(problem),
                    .got = std::move(got),
                    .expected = std::move(expected),
                    .hint = std::move(hint)});
}

/// Checks that LibTorch can use `device`. The error (exit code 2) contains the number of devices.
absl::Status check_device(at::Device device, const char* field = "--device") {
  if (device.is_cpu()) return absl::OkStatus();
  const int count = device_count(device.type());
  if (std::max<int>(device.index(), 0) < count) return absl::OkStatus();
  return usage_error(field, "no such device", device.str(),
                     count == 0 ? "cpu" : "an index below " + std::to_string(count),
                     count == 0 ? "no CUDA device is visible: see nvidia-smi and CUDA_VISIBLE_DEVICES" : "");
}

/// Returns the requested or the default device; see DeviceReplicatorOptions::device.
at::Device chosen_device(const DeviceReplicatorOptions& options) {
  if (options.device) return *options.device;
  if (options.process_group) return options.process_group->options().device;
  if (!options.gpu_ids.empty()) return {at::kCUDA, static_cast<c10::DeviceIndex>(options.gpu_ids.front())};
  const bool has_gpu = options.cpu_replicas <= 1 && device_count(at::kCUDA) > 0;
  return has_gpu ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
}

Strategy resolve(const DeviceReplicatorOptions& options) {
  if (options.strategy != Strategy::kAuto) return options.strategy;
  if (options.process_group) return Strategy::kDistributed;
  const bool several = options.device->is_cpu() ? options.cpu_replicas > 1 : options.gpu_ids.size() > 1;
  return several ? Strategy::kDataParallel : Strategy::kSingle;
}

/// Returns the devices of DataParallel.
absl::StatusOr<std::vector<at::Device>> devices_of(const DeviceReplicatorOptions& options) {
  const at::Device device = *options.device;
  if (device.is_cpu()) {
    if (options.cpu_replicas < 1) {
      return usage_error("--parallel", "too few replicas", std::to_string(options.cpu_replicas), ">= 1");
    }
    return std::vector<at::Device>(static_cast<size_t>(options.cpu_replicas), at::kCPU);
  }
  std::vector<int64_t> ids = options.gpu_ids;
  if (ids.empty()) {  // all
    TRAINKIT_RETURN_IF_ERROR(check_device(device));
    ids.resize(static_cast<size_t>(device_count(device.type())));
    std::iota(ids.begin(), ids.end(), 0);
  }
  if (std::set<int64_t>(ids.begin(), ids.end()).size() != ids.size()) {
    return usage_error("--gpu_ids", "duplicate GPU", "", "each GPU once");
  }
  std::vector<at::Device> devices;
  for (const int64_t id : ids) {
    if (id < 0 || id >= device_count(device.type())) {
      return usage_error("--gpu_ids", "no such GPU", std::to_string(id),
                         "0.." + std::to_string(device_count(device.type()) - 1),
                         "see nvidia-smi and CUDA_VISIBLE_DEVICES");
    }
    devices.emplace_back(device.type(), static_cast<c10::DeviceIndex>(id));
  }
  return devices;
}

/// Checks that `strategy` can divide the training state as the options say.
absl::Status check_sharding(const DeviceReplicatorOptions& options, Strategy strategy) {
  if (options.sharding == Sharding::kNone || strategy == Strategy::kSingle) return absl::OkStatus();
  if (strategy == Strategy::kDataParallel && options.device->is_cpu()) {
    return usage_error("--shard", "replicas on the CPU share one optimizer, whose state cannot be divided", "dp", "ddp",
                       "start the program with trainkit launch, torchrun, srun or mpirun");
  }
  if (!options.find_unused_parameters) return absl::OkStatus();
  return usage_error("find_unused_parameters", "cannot be used with sharding", "true", "false");
}

absl::Status check_buckets(const DeviceReplicatorOptions& options) {
  if (options.bucket_bytes > 0 && options.first_bucket_bytes > 0) return absl::OkStatus();
  return usage_error("bucket_bytes", "bucket size must be positive",
                     std::to_string(std::min(options.bucket_bytes, options.first_bucket_bytes)), "> 0");
}

std::shared_ptr<torch::nn::Module> make_module(const std::function<std::shared_ptr<torch::nn::Module>()>& factory,
                                               at::Device device) {
  std::shared_ptr<torch::nn::Module> module;
  try {
    const detail::AllocationGuard guard;
    module = factory();
  } catch (...) {
    throw absl::BadStatusOrAccess(detail::status_from_user_exception("", "the model factory"));
  }
  TORCH_CHECK_VALUE(module != nullptr, "the factory returned no module");
  module->to(device);
  return module;
}

/// Applies DeviceReplicatorOptions::sync_batch_norm.
std::shared_ptr<torch::nn::Module> with_batch_norm(std::shared_ptr<torch::nn::Module> module,
                                                   std::optional<bool> synchronize) {
  if (!module || !synchronize) return module;
  for (const auto& part : module->modules()) {
    if (auto* norm = part->as<SyncBatchNormImpl>()) norm->options.synchronize = *synchronize;
  }
  return module;
}

/// Throws c10::ValueError for a parameter whose sparse gradients cannot be summed over replicas on `device`.
void check_sparse_gradients(const torch::nn::Module& module, at::Device device, Sharding sharding) {
  if (device.is_cpu() && sharding == Sharding::kNone) return;
  for (const auto& [name, parameter] : detail::sparse_parameters(module)) {
    TORCH_CHECK_VALUE(device.is_cpu(), "parameter '", name,
                      "' has sparse gradients, which several GPUs do not reduce: build its layer with sparse(false)");
    TORCH_CHECK_VALUE(false, "parameter '", name,
                      "' has sparse gradients, which are not divided: use no sharding, or build its layer with "
                      "sparse(false)");
  }
}

/// Makes the models of all devices. Restores the generator to its state after the first model, so that later random
/// numbers are those of a run on one device.
std::vector<std::shared_ptr<torch::nn::Module>> make_modules(
    const std::function<std::shared_ptr<torch::nn::Module>()>& factory, const std::vector<at::Device>& devices) {
  std::vector<std::shared_ptr<torch::nn::Module>> modules{make_module(factory, devices[0])};
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const at::Tensor state = [&, lock = std::lock_guard(generator.mutex())] { return generator.get_state(); }();
  for (size_t i = 1; i < devices.size(); ++i) modules.push_back(make_module(factory, devices[i]));
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
  return modules;
}

}  // namespace

void DeviceReplicator::run(const Body& body, bool reduce_gradients) {
  detail::strategy_of(*this).run(body, reduce_gradients);
}

absl::StatusOr<std::unique_ptr<DeviceReplicator>> DeviceReplicator::create_erased(
    const ModuleFactory& factory, const DeviceReplicatorOptions& asked) try {
  DeviceReplicatorOptions options = asked;
  const at::Device device = chosen_device(asked);
  options.device = device;
  const Strategy strategy = resolve(options);
  const ModuleFactory make = [&] {
    std::shared_ptr<torch::nn::Module> module = with_batch_norm(factory(), options.sync_batch_norm);
    const bool has_others = strategy == Strategy::kDistributed || (!device.is_cpu() && options.gpu_ids.size() != 1);
    if (module && strategy != Strategy::kSingle && has_others)
      check_sparse_gradients(*module, device, options.sharding);
    return module;
  };
  TRAINKIT_RETURN_IF_ERROR(check_sharding(options, strategy));
  std::unique_ptr<DeviceReplicator> replicator;
  switch (strategy) {
    case Strategy::kDataParallel: {
      TRAINKIT_ASSIGN_OR_RETURN(const std::vector<at::Device> devices, devices_of(options));
      TRAINKIT_RETURN_IF_ERROR(check_buckets(options));
      const bool share = options.share_weights && device.is_cpu();
      std::vector<std::shared_ptr<torch::nn::Module>> modules = make_modules(make, devices);
      TRAINKIT_RETURN_IF_ERROR(detail::check_separate(modules));
      replicator = std::make_unique<detail::DataParallel>(std::move(modules), devices, share, options);
      break;
    }
    case Strategy::kDistributed: {
      if (!options.process_group) {
        return usage_error("--strategy", "ddp needs a launcher", "ddp", "",
                           "start the program with torchrun, srun, mpirun or trainkit launch");
      }
      TRAINKIT_RETURN_IF_ERROR(check_device(device));
      TRAINKIT_RETURN_IF_ERROR(check_buckets(options));
      replicator = std::make_unique<detail::Distributed>(make_module(make, device), options);
      break;
    }
    default:
      TRAINKIT_RETURN_IF_ERROR(check_device(device));
      replicator = std::make_unique<detail::SingleDevice>(make_module(factory, device), device);
  }
  return replicator;
} catch (...) {
  return status_from_current_exception();
}

namespace detail {

SingleDevice::SingleDevice(std::shared_ptr<torch::nn::Module> module, at::Device device)
    : module_(std::move(module)), state_({module_}), device_(device) {}

at::Device SingleDevice::device(int64_t replica) const {
  TORCH_CHECK_INDEX(replica == 0, "replica must be 0, got ", replica);
  return device_;
}

const std::shared_ptr<torch::nn::Module>& SingleDevice::module(int64_t replica) const {
  TORCH_CHECK_INDEX(replica == 0, "replica must be 0, got ", replica);
  return module_;
}

void SingleDevice::run(const Body& body, bool, const OnSent&) {
  phases_.list_inputs({module_}, state_.version());
  if (const at::Tensor loss = body(0); loss.defined()) phases_.backward(0, loss);
}

}  // namespace detail
}  // namespace trainkit
