#pragma once
// A process for each device, on c10d's Reducer.

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <utility>
#include <vector>

#include "distributed/process_group_impl.h"
#include "trainkit/distributed/device_replicator.h"

namespace trainkit::detail {

/// Sends a bucket of gradients on its way when backward has filled it, and remembers what is on its way.
class BucketHook final : public c10d::CommHookInterface {
 public:
  /// What has been sent in this backward: shared with Distributed, since the Reducer owns the hook.
  struct Sent {
    std::chrono::steady_clock::time_point started;
    std::chrono::steady_clock::time_point last;         // when the last bucket was full
    std::vector<c10::intrusive_ptr<c10d::Work>> works;  // in the order of the buckets
    DeviceReplicator::OnSent on_sent;                   // after the last bucket
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

class Distributed final : public DeviceReplicator {
 public:
  Distributed(std::shared_ptr<torch::nn::Module> module, const DeviceReplicatorOptions& options);
  ~Distributed() override;

  int64_t replicas() const override { return 1; }
  int64_t world_replicas() const override { return process_group_->world_size(); }
  at::Device device(int64_t replica = 0) const override;
  const std::shared_ptr<torch::nn::Module>& module(int64_t replica = 0) const override;
  ProcessGroup* process_group() const override { return process_group_.get(); }
  ReplicaGroup& group() override { return group_; }
  void run(const Body& body, bool reduce_gradients, const OnSent& on_sent) override;
  void skip_reduction() override;
  void abandon_step() override;
  void synchronize() override;

 private:
  class Ranks final : public ReplicaGroup {
   public:
    explicit Ranks(ProcessGroup& group) : group_(group) {}
    int64_t size() const override { return group_.world_size(); }
    void all_reduce(int64_t replica, at::Tensor& tensor) override;

   private:
    ProcessGroup& group_;
  };

  ProcessGroup::Impl& ranks() const { return process_group_->impl(); }
  void create_reducer(const DeviceReplicatorOptions& options);
  /// What every rank does before the body of a step whose gradients are reduced.
  void begin_reduction();
  void complete_reduction(bool contribute);
  void copy_gradients(const c10d::GradBucket& bucket, bool to_bucket) const;
  void backward(const Body& body, bool reduce);
  /// Throws the Error of a lost rank if a bucket failed on its way.
  void throw_if_broken();
  std::string parameters_without_gradient() const;

  std::shared_ptr<ProcessGroup> process_group_;
  std::shared_ptr<torch::nn::Module> module_;
  at::Device device_;
  bool find_unused_;
  GradientCompression compression_;
  std::vector<std::pair<std::string, at::Tensor>> trained_;
  std::vector<at::Tensor> buffers_;
  bool asks_others_ = false;  // the body itself has collectives
  bool begun_ = false;        // begin_reduction was called for the step
  Ranks group_;
  std::shared_ptr<BucketHook::Sent> sent_;
  std::shared_ptr<c10d::Reducer> reducer_;
  std::shared_ptr<c10d::Logger> logger_;  // the Reducer writes into one where parameters may be unused
};

}  // namespace trainkit::detail
