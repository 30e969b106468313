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
#include "trainkit/distributed/replica_group.h"
#include "trainkit/distributed/replicator_options.h"

namespace torch::nn {
class Module;
}

namespace trainkit {

namespace detail {
class ReplicaStrategy;
}

/// A module whose own backward gives some of its parameters sparse gradients, as torch::nn::Embedding does with
/// sparse(true): replicas and ranks then reduce the rows of these gradients.
class HasSparseGradients {
 public:
  virtual ~HasSparseGradients() = default;
  /// Returns these parameters of the module. The same in every call.
  virtual std::vector<at::Tensor> sparse_parameters() const = 0;
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
/// Sparse gradients (Embedding and EmbeddingBag with sparse(true), HasSparseGradients) are reduced by their rows:
/// replicas on the CPU add them, ranks on the CPU gather them after backward, so that the cost follows the rows of the
/// batch. SparseAdam takes them. They are not reduced over GPUs, nor with sharding.
///
/// Threads: one thread owns the object and calls it; `body` is called from one thread per replica.
class DeviceReplicator {
 public:
  /// Returns the differentiable loss of one replica, a scalar, or an undefined tensor if the replica has no rows.
  using Body = std::function<at::Tensor(int64_t replica)>;

  /// Creates the replicas. `factory` makes one model: a module holder (TORCH_MODULE) or a std::shared_ptr to a
  /// torch::nn::Module. It is called once per replica in this process and makes a new model each time. The module is
  /// moved to its device. Errors:
  ///   kInvalidArgument    the device does not exist, the strategy does not fit the devices or sparse gradients, or
  ///                       models of two replicas share a module, parameter or buffer (exit code 2)
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
