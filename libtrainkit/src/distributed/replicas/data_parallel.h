#pragma once
// Data parallelism in one process: a replica and a persistent thread for each device.

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/machine/waiting_threads.h"
#include "distributed/replicas/bucket_reducer.h"
#include "distributed/replicas/model_state.h"
#include "distributed/replicas/replica_collectives.h"
#include "distributed/replicas/replica_phases.h"
#include "distributed/replicas/replica_strategy.h"
#include "distributed/replicas/replica_tools.h"
#include "distributed/shards/parameter_shards.h"

namespace trainkit::detail {

/// Owns one persistent thread per replica. Each thread runs every task once. See Note [Replica threads].
class ReplicaThreads {
 public:
  using Task = std::function<void(int64_t replica)>;

  /// @param intra_op_threads LibTorch's intra-op threads within each replica's thread.
  ReplicaThreads(int64_t count, int intra_op_threads);
  ~ReplicaThreads();

  /// Calls task(i) on thread i for all threads at once. Blocks until all have returned, then throws the exception of
  /// the lowest replica that threw. A thread whose task throws calls `on_exception` immediately.
  void run(
      const Task& task, const std::function<void()>& on_exception = [] {});

 private:
  void loop(int64_t replica, int intra_op_threads);

  std::mutex mutex_;
  std::condition_variable begin_, end_;
  const Task* task_ = nullptr;
  const std::function<void()>* on_exception_ = nullptr;
  uint64_t round_ = 0;
  int64_t running_ = 0;
  bool stopping_ = false;
  std::exception_ptr first_exception_;
  std::vector<std::thread> threads_;
};

/// Sums over the replicas of a process: tensors on GPUs by NCCL, others at an abortable barrier. See
/// Note [Replica barrier].
class LocalGroup final : public ReplicaGroup {
 public:
  explicit LocalGroup(int64_t size) : tensors_(static_cast<size_t>(size)) {}

  int64_t size() const override { return static_cast<int64_t>(tensors_.size()); }
  void all_reduce(int64_t replica, at::Tensor& tensor) override;
  bool any(int64_t replica, bool value) override;
  void use(ReplicaCollectives& of_gpus) { of_gpus_ = &of_gpus; }
  /// Makes current and later callers of all_reduce throw until reset().
  void abort();
  void reset();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  ReplicaCollectives* of_gpus_ = nullptr;  // null on the CPU
  std::vector<at::Tensor*> tensors_;
  int64_t arrived_ = 0;
  uint64_t round_ = 0;
  bool aborted_ = false;
};

/// What sums the gradients of the phases of a step. Used by one thread.
class PhaseSums {
 public:
  PhaseSums(const ReplicaPhases& phases, const ModelState& state, const DeviceReplicatorOptions& options)
      : phases_(phases), state_(state), options_(options) {}

  /// Whether BucketReducers sum, else the caller.
  void use_reducers(bool on_gpus) { has_reducers_ = on_gpus; }
  /// Lists the trained parameters of the current phase unless that was done. `is_new`: drops those of all phases first.
  void follow(bool is_new);

  /// Of the current phase, per replica, in one order; trained parameters only.
  const std::vector<std::vector<at::Tensor>>& parameters() const { return sums_[phases_.current()].parameters; }
  /// Null on the CPU, with one GPU and with sharding.
  BucketReducer* reducer() const { return sums_[phases_.current()].reducer.get(); }

 private:
  struct Sums {
    std::vector<std::vector<at::Tensor>> parameters = {};
    std::unique_ptr<BucketReducer> reducer = nullptr;
  };

  const ReplicaPhases& phases_;
  const ModelState& state_;
  const DeviceReplicatorOptions& options_;
  bool has_reducers_ = false;
  std::vector<Sums> sums_;
};

class DataParallel final : public ReplicaStrategy {
 public:
  /// @param share_weights All devices are the same device, and all replicas use the weights of the first one.
  DataParallel(std::vector<std::shared_ptr<torch::nn::Module>> modules, std::vector<at::Device> devices,
               bool share_weights, const DeviceReplicatorOptions& options);

  int64_t replicas() const override { return static_cast<int64_t>(modules_.size()); }
  int64_t world_replicas() const override { return replicas(); }
  int64_t weight_copies() const override { return share_weights_ ? 1 : replicas(); }
  at::Device device(int64_t replica = 0) const override { return devices_.at(static_cast<size_t>(replica)); }
  const std::shared_ptr<torch::nn::Module>& module(int64_t replica = 0) const override;
  ReplicaGroup& group() override { return group_; }
  Sharding sharding() const override { return collectives_ ? options_.sharding : Sharding::kNone; }
  void divide_parameters(const std::function<bool(const at::Tensor&)>& is_whole) override;
  ParameterShards* shards(int64_t copy = 0) const override;
  void gather_weights() override;
  void sum_over_shards(const std::vector<at::Tensor>& values) override { collectives_->all_reduce(values); }
  void begin_step() override;
  int64_t trained_version() const override { return state_.version(); }
  void abandon_step() override;
  void run(const Body& body, bool reduce_gradients, const OnSent& on_sent) override;
  void synchronize() override;
  void synchronize_buffers() override;
  std::string graph_obstacle() const override;
  void use_current_streams() override;
  void recover() override;

 private:
  void follow_model();
  void begin_reduction(bool reduces);
  void run_replica(int64_t replica, const Body& body, bool is_last);

  std::vector<std::shared_ptr<torch::nn::Module>> modules_;
  ModelState state_;
  std::vector<at::Device> devices_;
  bool share_weights_;
  DeviceReplicatorOptions options_;
  PhaseSums sums_;
  std::vector<std::vector<at::Tensor>> buffers_;          // per replica; buffers that each replica updates itself
  std::unique_ptr<ReplicaCollectives> collectives_;       // on several GPUs, else null
  std::vector<std::unique_ptr<ParameterShards>> shards_;  // then, after divide_parameters(): one per replica
  LocalGroup group_;
  ReplicaThreads threads_;
  std::unique_ptr<IdleTeam> idle_team_;  // on the CPU, see Note [Waiting threads]
  StepSeed seed_;
};

}  // namespace trainkit::detail
