#pragma once
/// The model on the devices that train it.

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <concepts>
#include <functional>
#include <memory>
#include <utility>

namespace trainkit {

/// How the model is spread over devices.
enum class Strategy {
  kAuto,   ///< What suits the devices asked for: a single one here.
  kSingle  ///< One model on one device.
};

struct DeviceReplicatorOptions {
  Strategy strategy = Strategy::kAuto;
  at::Device device = at::kCPU;
};

/// One or more replicas of a model, each on a device, whose gradients are those of one model on all the rows.
///
///   auto devices = DeviceReplicator::create([] { return Classifier(64, 10); }, {.device = at::kCPU}).value();
///   devices->run([&](int64_t replica) { loss(devices->module(replica), shard[replica]).backward(); });
///
/// Threads: one thread owns it and calls run; `body` may be called from a thread per replica.
class DeviceReplicator {
 public:
  /// `factory` makes one model: a module holder (TORCH_MODULE) or a std::shared_ptr to a torch::nn::Module. It is
  /// called once per replica in this process, and the module is moved to its device. Or:
  ///   kInvalidArgument    the device is not there, or the strategy does not fit (exit code 2)
  ///   kResourceExhausted  the model does not fit into the device's memory (exit code 7)
  template <class Factory>
  static absl::StatusOr<std::unique_ptr<DeviceReplicator>> create(Factory factory,
                                                                  const DeviceReplicatorOptions& options = {}) {
    return create_erased([factory = std::move(factory)] { return module_of(factory()); }, options);
  }

  virtual ~DeviceReplicator() = default;

  /// Replicas in this process, and over all processes.
  virtual int64_t replicas() const = 0;
  virtual int64_t world_replicas() const = 0;
  virtual at::Device device(int64_t replica = 0) const = 0;
  virtual const std::shared_ptr<torch::nn::Module>& module(int64_t replica = 0) const = 0;

  /// Calls `body(replica)` for every replica here; it runs forward and backward on that replica's module. Then, with
  /// `reduce_gradients`, every replica holds the mean gradient of all replicas. Pass false while gradients accumulate,
  /// true on the last micro-batch of a step. Blocks the host until every body has returned; never synchronises the
  /// device. An exception of `body` leaves all replicas without a reduction and is thrown on.
  virtual void run(const std::function<void(int64_t replica)>& body, bool reduce_gradients = true) = 0;

 private:
  using ModuleFactory = std::function<std::shared_ptr<torch::nn::Module>()>;
  static absl::StatusOr<std::unique_ptr<DeviceReplicator>> create_erased(const ModuleFactory& factory,
                                                                         const DeviceReplicatorOptions& options);
  template <class M>
  static std::shared_ptr<torch::nn::Module> module_of(M made) {
    if constexpr (std::convertible_to<M, std::shared_ptr<torch::nn::Module>>) {
      return made;
    } else {
      return made.ptr();
    }
  }
};

/// One model on one device: every call goes straight through.
class SingleDevice final : public DeviceReplicator {
 public:
  SingleDevice(std::shared_ptr<torch::nn::Module> module, at::Device device);

  int64_t replicas() const override { return 1; }
  int64_t world_replicas() const override { return 1; }
  at::Device device(int64_t replica = 0) const override;
  const std::shared_ptr<torch::nn::Module>& module(int64_t replica = 0) const override;
  void run(const std::function<void(int64_t replica)>& body, bool reduce_gradients = true) override;

 private:
  std::shared_ptr<torch::nn::Module> module_;
  at::Device device_;
};

}  // namespace trainkit
