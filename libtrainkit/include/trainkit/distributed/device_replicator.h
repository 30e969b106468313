#pragma once
/// Replicates a model over devices and reduces its gradients.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <c10/core/Device.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "trainkit/distributed/process_group.h"

namespace torch::nn {
class Module;
}

namespace trainkit {

namespace detail {
class ReplicaStrategy;
}

// ---- Collectives between the replicas of a model, for use inside forward and backward.

/// Connects all replicas of one model, in this process and in others. Used by layers that need the rows of all replicas
/// (SyncBatchNorm) and for values that must be equal on all replicas.
class ReplicaGroup {
 public:
  virtual ~ReplicaGroup() = default;

  /// Number of replicas over all processes.
  virtual int64_t size() const = 0;

  /// Sums `tensor` over all replicas in place, in the order of the replicas; each gets the same bits. Every replica
  /// calls it from its own thread, in the same order, with tensors of one shape and dtype. Blocks the host for CPU
  /// tensors. Throws absl::BadStatusOrAccess if another replica has failed, instead of waiting for it.
  virtual void all_reduce(int64_t replica, at::Tensor& tensor) = 0;

  /// Whether `value` is true on any replica of this process; ranks do not ask each other. Every replica calls it, in
  /// the same order. Blocks the host until each has called. Throws as all_reduce.
  virtual bool any(int64_t replica, bool value) = 0;
};

/// Selects how the model is placed on devices.
enum class Strategy {
  kAuto,  ///< kDistributed with a process group; kDataParallel if gpu_ids names several GPUs or cpu_replicas > 1; else
          ///< kSingle. For all GPUs set kDataParallel.
  kSingle,        ///< One model on one device.
  kDataParallel,  ///< One process with one replica and one thread per device.
  kDistributed    ///< One process per device.
};

/// Selects the dtype in which gradients are sent between processes. Sums are computed in that dtype.
enum class GradientCompression { kNone, kFp16, kBf16 };

/// Selects what each rank of kDistributed, or each GPU of kDataParallel, keeps of the training state (ZeRO stages 1 and
/// 2). Weights are whole on each of them. Bytes per parameter in float32 with AdamW, on `n` ranks or GPUs:
///   kNone       4 weight + 4 gradient + 8 state
///   kOptimizer  4 weight + 4 gradient + 8 / n
///   kGradients  4 weight + (4 + 8) / n, and up to two buckets of gradients
/// Each rank updates its part of the weights and sends it to the others. Gradients are reduce-scattered during backward
/// and weights all-gathered after the update, which sends as many bytes as the all-reduce of kNone. With kGradients
/// every micro-batch is reduced.
enum class Sharding { kNone, kOptimizer, kGradients };

struct DeviceReplicatorOptions {
  Strategy strategy = Strategy::kAuto;
  /// Device of the model. kDataParallel uses only its type and ignores the index. If unset: the device of the process
  /// group; else the first GPU (of gpu_ids) if there is one and cpu_replicas is 1; else the CPU.
  /// DeviceReplicator::device() returns the choice.
  std::optional<at::Device> device = std::nullopt;
  /// GPUs of kDataParallel on CUDA, in the order of the replicas. Empty means all visible GPUs.
  std::vector<int64_t> gpu_ids = {};
  /// Number of logical replicas of kDataParallel on the CPU. The intra-op threads are divided among them.
  int64_t cpu_replicas = 1;
  /// Replicas on one device share the memory of their weights, so that the optimizer updates one copy. false gives each
  /// replica its own weights, as on several devices.
  bool share_weights = true;
  /// Whether the model's SyncBatchNorm layers normalise with the rows of all replicas (true) or of their own replica
  /// (false). Unset leaves each layer as its options say. True gives the results of one device, but all replicas meet
  /// at each such layer, once in forward and once in backward.
  std::optional<bool> sync_batch_norm = std::nullopt;

  /// Ranks of kDistributed.
  std::shared_ptr<ProcessGroup> process_group = nullptr;
  GradientCompression gradient_compression = GradientCompression::kNone;
  /// What the ranks, or the GPUs of kDataParallel, divide among them. Not with find_unused_parameters, nor with
  /// kDataParallel on the CPU. One device keeps everything. TrainStep gives each optimizer its part.
  Sharding sharding = Sharding::kNone;
  /// Size of the buckets in which gradients are reduced during backward (kDistributed, and kDataParallel on GPUs). The
  /// first bucket is small, so that communication starts early. Defaults of
  /// torch.nn.parallel.DistributedDataParallel.
  int64_t bucket_bytes = 25 << 20;
  int64_t first_bucket_bytes = 1 << 20;
  /// Allows parameters without a gradient in a step (kDistributed). Costs one traversal of the autograd graph per step.
  bool find_unused_parameters = false;
};

/// Runs one or more replicas of a model and reduces their gradients to those of one model on all rows.
///
///   auto devices = DeviceReplicator::create([] { return Classifier(64, 10); }, {.cpu_replicas = 2}).value();
///   devices->run([&](int64_t replica) { return loss(devices->module(replica), shard[replica]) * share[replica]; });
///
/// All replicas start with the weights of the first replica of rank 0. They stay bitwise equal as long as each applies
/// the same update to the gradients that run() leaves. Random numbers that a body draws from LibTorch's default
/// generators (dropout) come from a generator of the replica. Each step seeds it from the default generator, so saving
/// the default generator is enough to resume.
///
/// The replicas are one model: the mode of each module (train(), eval()) and requires_grad of each parameter are those
/// of module(), the first replica, and hold for all replicas of this process from the next step or run on. Layers can
/// thus be frozen and unfrozen between steps. Every rank does it before the same step: the ranks compare their modes
/// and trained parameters after a change, and a difference is an error (exit code 8). With sharding the trained
/// parameters are fixed once they are divided; freezing one is an error (train.frozen, exit code 2). Modules and
/// parameters themselves must not be added or replaced after create().
///
/// Threads: one thread owns the object and calls it; `body` is called from one thread per replica.
class DeviceReplicator {
 public:
  /// Returns the differentiable loss of one replica, a scalar, or an undefined tensor if the replica has no rows.
  using Body = std::function<at::Tensor(int64_t replica)>;

  /// Creates the replicas. `factory` makes one model: a module holder (TORCH_MODULE) or a std::shared_ptr to a
  /// torch::nn::Module. It is called once per replica in this process and makes a new model each time. The module is
  /// moved to its device. Errors:
  ///   kInvalidArgument    the device does not exist, the strategy does not fit the devices, or models of two replicas
  ///                       share a module, parameter or buffer (exit code 2)
  ///   kResourceExhausted  the model does not fit into the device's memory (exit code 7)
  ///   kUnavailable        ranks have different parameters, or a rank is lost (exit code 8)
  template <class Factory>
  static absl::StatusOr<std::unique_ptr<DeviceReplicator>> create(Factory factory,
                                                                  const DeviceReplicatorOptions& options = {}) {
    return create_erased([factory = std::move(factory)] { return module_of(factory()); }, options);
  }

  virtual ~DeviceReplicator() = default;

  /// Number of replicas in this process, and in all processes.
  virtual int64_t replicas() const = 0;
  virtual int64_t world_replicas() const = 0;
  /// Number of copies of the weights in this process. Replicas below this number own a copy; the others use the copy of
  /// replica 0. The optimizer updates each copy.
  virtual int64_t weight_copies() const = 0;
  virtual at::Device device(int64_t replica = 0) const = 0;
  virtual const std::shared_ptr<torch::nn::Module>& module(int64_t replica = 0) const = 0;
  /// Ranks of kDistributed, else nullptr.
  virtual ProcessGroup* process_group() const = 0;
  /// Collectives for use inside a body.
  virtual ReplicaGroup& group() = 0;

  /// What create() was asked to divide; kNone for one device.
  virtual Sharding sharding() const = 0;

  /// Calls `body(replica)` for every replica in this process, and backward() on each loss. With `reduce_gradients`,
  /// every replica then holds the sum of the gradients of all replicas, including those of earlier runs without
  /// reduction; each body therefore scales its loss by its share of the rows. Pass false while gradients accumulate and
  /// true on the last micro-batch of a step. Blocks the host until every replica is done; never synchronises a GPU.
  ///
  /// Rethrows an exception of a body once every replica is done; discard the gradients then. The other ranks do not
  /// wait for a body that throws: they get a sum without this rank. TrainStep tells them to discard it. A body with its
  /// own collectives (SyncBatchNorm) is the exception: there the other ranks fail when this process ends. A lost rank
  /// is thrown as absl::BadStatusOrAccess with the Error of ProcessGroup.
  void run(const Body& body, bool reduce_gradients = true);

  /// Copies the weights and buffers of the first replica of rank 0 to every replica. Call it after loading weights.
  virtual void synchronize() = 0;

  /// Copies the buffers that each replica updates itself (BatchNorm's statistics) from the first replica of rank 0 to
  /// every replica. Every rank calls it. run() with reduction calls it first, as evaluate() and for_each_batch() do:
  /// the evaluated model is the one that is saved.
  virtual void synchronize_buffers() = 0;

  /// Seconds that run() has spent in reduction that backward did not hide, since creation. On GPUs this is the host
  /// time for queueing the work, since the device is not synchronised. Callable from any thread.
  virtual double reduce_seconds() const = 0;

 private:
  friend class detail::ReplicaStrategy;
  DeviceReplicator() = default;  // every replicator is a ReplicaStrategy, as detail::strategy_of() assumes

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
