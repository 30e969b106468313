#pragma once
/// The model on the devices that train it.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <c10/core/Device.h>

#include <atomic>
#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "trainkit/distributed/process_group.h"
#include "trainkit/distributed/replica_group.h"

namespace torch::nn {
class Module;
}

namespace trainkit {

/// How the model is spread over devices.
enum class Strategy {
  kAuto,          ///< kDistributed with a process group, kDataParallel with several devices, else kSingle.
  kSingle,        ///< One model on one device.
  kDataParallel,  ///< One process; a replica and a thread for each device.
  kDistributed    ///< A process for each device.
};

/// What gradients are rounded to on their way between processes; sums are taken in that type.
enum class GradientCompression { kNone, kFp16, kBf16 };

struct DeviceReplicatorOptions {
  Strategy strategy = Strategy::kAuto;
  /// The device; of kDataParallel its type, and the index is not looked at. Unset: that of the process group; else the
  /// first GPU (of gpu_ids) if there is one and cpu_replicas is 1; else the CPU. DeviceReplicator::device() says which.
  std::optional<at::Device> device = std::nullopt;
  /// kDataParallel on CUDA: the GPUs, in the order of the replicas. Empty: all that are visible.
  std::vector<int64_t> gpu_ids = {};
  /// kDataParallel on the CPU: logical replicas, each with its share of the intra-op threads.
  int64_t cpu_replicas = 1;
  /// Replicas on one device use the same memory for their weights, so that there is one copy to update. false gives
  /// each its own, as several devices have.
  bool share_weights = true;

  /// kDistributed: the ranks.
  std::shared_ptr<ProcessGroup> process_group = nullptr;
  GradientCompression gradient_compression = GradientCompression::kNone;
  /// Gradients are reduced in buckets of this size while backward goes on; the first that is ready is small, so that
  /// communication begins early. PyTorch's DistributedDataParallel has the same values.
  int64_t bucket_bytes = 25 << 20;
  int64_t first_bucket_bytes = 1 << 20;
  /// kDistributed: some parameters may have no gradient in a step. Costs a walk over the graph at each step.
  bool find_unused_parameters = false;
};

/// One or more replicas of a model, each on a device, whose gradients are those of one model on all the rows.
///
///   auto devices = DeviceReplicator::create([] { return Classifier(64, 10); }, {.cpu_replicas = 2}).value();
///   devices->run([&](int64_t replica) { return loss(devices->module(replica), shard[replica]) * share[replica]; });
///
/// All replicas begin with the weights of the first replica of rank 0, and stay equal to the bit as long as each is
/// updated alike from the gradients that run leaves. Random numbers that a body draws from LibTorch's default
/// generators (dropout) come from a generator of the replica's own, which run derives from the default generator:
/// saving that one saves all.
///
/// Threads: one thread owns it and calls; `body` is called from a thread per replica.
class DeviceReplicator {
 public:
  /// The differentiable loss of one replica, a scalar; undefined if the replica has nothing to learn from.
  using Body = std::function<at::Tensor(int64_t replica)>;

  /// `factory` makes one model: a module holder (TORCH_MODULE) or a std::shared_ptr to a torch::nn::Module. It is
  /// called once per replica in this process, and the module is moved to its device. Errors:
  ///   kInvalidArgument    the device is not there, or the strategy does not fit (exit code 2)
  ///   kResourceExhausted  the model does not fit into the device's memory (exit code 7)
  ///   kUnavailable        ranks differ in parameters, or one is lost (exit code 8)
  template <class Factory>
  static absl::StatusOr<std::unique_ptr<DeviceReplicator>> create(Factory factory,
                                                                  const DeviceReplicatorOptions& options = {}) {
    return create_erased([factory = std::move(factory)] { return module_of(factory()); }, options);
  }

  virtual ~DeviceReplicator() = default;

  /// Replicas in this process, and over all processes.
  virtual int64_t replicas() const = 0;
  virtual int64_t world_replicas() const = 0;
  /// Copies of the weights in this process: the replicas below this number have one each, all others use that of
  /// replica 0. Each copy needs the optimizer's update.
  virtual int64_t weight_copies() const { return 1; }
  virtual at::Device device(int64_t replica = 0) const = 0;
  virtual const std::shared_ptr<torch::nn::Module>& module(int64_t replica = 0) const = 0;
  /// The ranks of kDistributed; else nullptr.
  virtual ProcessGroup* process_group() const { return nullptr; }
  /// For exchanges inside a body.
  virtual ReplicaGroup& group() = 0;

  /// Called by run, when all that this rank has for the others is on its way and nothing has come back yet.
  using OnSent = std::function<void()>;

  /// Calls `body(replica)` for every replica here and backward() on what it returns. Then, with `reduce_gradients`,
  /// every replica holds the sum of the gradients of all replicas, those of earlier runs without reduction included:
  /// let a body scale its loss by its share. Pass false while gradients accumulate, true on the last micro-batch of a
  /// step. Blocks the host until every replica is done; never synchronises a GPU.
  ///
  /// An exception of a body is thrown on when every replica is done; gradients are then to be dropped before the next
  /// step. Other ranks do not wait for a body that throws: they get a sum without this rank, and TrainStep's agreement
  /// tells them to drop it. (A body with exchanges of its own, SyncBatchNorm's, cannot be helped so: there the others
  /// fail when this process ends.) A lost rank is thrown as absl::BadStatusOrAccess with the Error of ProcessGroup.
  ///
  /// `on_sent` is called once during backward, from the thread that this goes on in; not at all without other ranks,
  /// where a rank has no loss, or with find_unused_parameters.
  virtual void run(const Body& body, bool reduce_gradients = true, const OnSent& on_sent = nullptr) = 0;

  /// Takes part in the reduction of a step that this rank cannot finish: adds zero. Nothing without other ranks.
  virtual void skip_reduction() {}

  /// Forgets a step that failed on some rank; called on every rank, before the next run.
  virtual void abandon_step() {}

  /// Gives every replica the weights and buffers of the first replica of rank 0: after something was loaded there.
  virtual void synchronize() = 0;

  /// Time in which run() did nothing but reduce gradients, since the beginning: what backward did not hide. On GPUs it
  /// is the host's time for queueing that work, as the device is not asked. Any thread.
  double reduce_seconds() const { return 1e-9 * static_cast<double>(reduce_time_.load(std::memory_order_relaxed)); }

 protected:
  /// Counts the time since `begin` as reduction.
  void add_reduction_since(std::chrono::steady_clock::time_point begin) {
    const std::chrono::nanoseconds time = std::chrono::steady_clock::now() - begin;
    reduce_time_.fetch_add(time.count(), std::memory_order_relaxed);
  }

 private:
  std::atomic<int64_t> reduce_time_{0};  // nanoseconds
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

}  // namespace trainkit
