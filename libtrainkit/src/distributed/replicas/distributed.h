#pragma once
// One process per device, with c10d's Reducer.

#include <memory>
#include <set>
#include <string>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <utility>
#include <vector>

#include "distributed/agreement/graph_ranks.h"
#include "distributed/group/process_group_impl.h"
#include "distributed/replicas/model_state.h"
#include "distributed/replicas/replica_tools.h"
#include "distributed/shards/parameter_shards.h"
#include "trainkit/distributed/device_replicator.h"

namespace trainkit::detail {

/// Starts the all-reduce of a bucket of gradients when backward has filled it, and records the pending work.
class BucketHook final : public c10d::CommHookInterface {
 public:
  /// Work sent in the current backward. Shared with Distributed, because the Reducer owns the hook.
  struct Sent {
    std::chrono::steady_clock::time_point started;
    std::chrono::steady_clock::time_point last;         // time at which the last bucket was full
    std::vector<c10::intrusive_ptr<c10d::Work>> works;  // in bucket order
    DeviceReplicator::OnSent on_sent;                   // called after the last bucket
  };

  BucketHook(ProcessGroup::Impl& group, GradientCompression compression, std::shared_ptr<Sent> sent)
      : group_(group), compression_(compression), sent_(std::move(sent)) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override;
  at::Tensor parseHookResult(const c10::IValue& result) override;

 private:
  ProcessGroup::Impl& group_;
  GradientCompression compression_;
  std::shared_ptr<Sent> sent_;
};

class Distributed final : public DeviceReplicator, public GraphRanks {
 public:
  Distributed(std::shared_ptr<torch::nn::Module> module, const DeviceReplicatorOptions& options);
  ~Distributed() override;

  int64_t replicas() const override { return 1; }
  int64_t world_replicas() const override { return process_group_->world_size(); }
  at::Device device(int64_t replica = 0) const override;
  const std::shared_ptr<torch::nn::Module>& module(int64_t replica = 0) const override;
  ProcessGroup* process_group() const override { return process_group_.get(); }
  ReplicaGroup& group() override { return group_; }
  Sharding sharding() const override { return options_.sharding; }
  void divide_parameters(const std::function<bool(const at::Tensor&)>& is_whole) override;
  ParameterShards* shards(int64_t = 0) const override { return shards_.get(); }
  void gather_weights() override { shards_->gathering().run(); }
  void sum_over_shards(const std::vector<at::Tensor>& values) override { shards_->all_reduce(values.front()); }
  void begin_step() override;
  int64_t trained_version() const override { return state_.version(); }
  void run(const Body& body, bool reduce_gradients, const OnSent& on_sent) override;
  bool needs_all_gradients() const override { return !options_.find_unused_parameters; }
  void skip_reduction() override;
  void abandon_step() override;
  void synchronize() override;
  void synchronize_buffers() override;

  std::string graph_obstacle() const override;
  void use_current_streams() override;
  void begin_capture() override { ranks().set_capturing(true); }
  void end_capture() override;
  void rearrange() override;
  void reduce() override;
  void start_watch() override { ranks().start_watch(); }
  absl::Status check(std::string_view what, std::chrono::steady_clock::time_point started) override {
    return ranks().check(what, started);
  }

 private:
  class Ranks final : public ReplicaGroup {
   public:
    explicit Ranks(ProcessGroup& group) : group_(group) {}
    int64_t size() const override { return group_.world_size(); }
    void all_reduce(int64_t replica, at::Tensor& tensor) override;
    bool any(int64_t, bool value) override { return value; }

   private:
    ProcessGroup& group_;
  };

  ProcessGroup::Impl& ranks() const { return process_group_->impl(); }
  void follow_model();
  void create_reducer();
  void share_buckets();
  ShardCollectives shard_collectives();
  /// Prepares a step with reduction; every rank calls it before the body.
  void begin_reduction(bool sends_buffers);
  void accumulate_in_buckets();
  void complete_reduction(bool contribute, bool records_order = true);
  void release_other_ranks();
  void copy_gradients(const c10d::GradBucket& bucket, bool to_bucket) const;
  void backward(const Body& body, bool reduce, bool is_last);
  void backward_of_shards(const at::Tensor& loss, bool is_last);
  /// Waits for all sent buckets. Throws the Error of a lost rank if one failed.
  void throw_if_broken();
  bool reduces() const { return reducer_ || shards_; }

  std::shared_ptr<ProcessGroup> process_group_;
  std::shared_ptr<torch::nn::Module> module_;
  ModelState state_;
  std::set<std::vector<char>> known_modes_;  // in which the ranks agree
  at::Device device_;
  DeviceReplicatorOptions options_;
  std::vector<std::pair<std::string, at::Tensor>> trained_;
  std::vector<at::Tensor> buffers_;
  bool has_collectives_ = false;  // the model contains collectives (SyncBatchNorm)
  StepSeed seed_;
  bool is_reducer_used_ = false;  // in this step
  bool reduction_begun_ = false;  // begin_reduction was called for the current step
  Ranks group_;
  std::shared_ptr<BucketHook::Sent> sent_;
  std::shared_ptr<c10d::Reducer> reducer_;
  std::unique_ptr<ParameterShards> shards_;  // with sharding, instead of the Reducer
  std::shared_ptr<c10d::Logger> logger_;     // required by the Reducer with find_unused_parameters
};

}  // namespace trainkit::detail
