#include "trainkit/distributed/device_replicator.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

/// Whether LibTorch can use `device`; an Error of exit code 2 that says how many there are if it cannot.
absl::Status check_device(at::Device device) {
  if (device.is_cpu()) return absl::OkStatus();
  const auto* backend =
      c10::impl::hasDeviceGuardImpl(device.type()) ? c10::impl::getDeviceGuardImpl(device.type()) : nullptr;
  const int count = backend ? backend->deviceCount() : 0;
  if (std::max<int>(device.index(), 0) < count) return absl::OkStatus();
  return to_status({.exit_code = ExitCode::kUsage,
                    .id = "cli.device",
                    .field = "--device",
                    .problem = "there is no such device",
                    .got = device.str(),
                    .expected = count == 0 ? "cpu" : "an index below " + std::to_string(count),
                    .hint = count == 0 ? "no CUDA device is visible: see nvidia-smi and CUDA_VISIBLE_DEVICES" : ""});
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceReplicator>> DeviceReplicator::create_erased(
    const ModuleFactory& factory, const DeviceReplicatorOptions& options) {
  TRAINKIT_RETURN_IF_ERROR(check_device(options.device));
  try {
    return std::make_unique<SingleDevice>(factory(), options.device);
  } catch (...) {
    return status_from_current_exception();
  }
}

SingleDevice::SingleDevice(std::shared_ptr<torch::nn::Module> module, at::Device device)
    : module_(std::move(module)), device_(device) {
  TORCH_CHECK_VALUE(module_ != nullptr, "the factory returned no module");
  module_->to(device_);
}

at::Device SingleDevice::device(int64_t replica) const {
  TORCH_CHECK_INDEX(replica == 0, "replica must be 0, got ", replica);
  return device_;
}

const std::shared_ptr<torch::nn::Module>& SingleDevice::module(int64_t replica) const {
  TORCH_CHECK_INDEX(replica == 0, "replica must be 0, got ", replica);
  return module_;
}

void SingleDevice::run(const std::function<void(int64_t replica)>& body, bool) { body(0); }

}  // namespace trainkit
