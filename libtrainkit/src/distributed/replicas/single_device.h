#pragma once
// One model on one device, without communication.

#include "distributed/replicas/model_state.h"
#include "distributed/replicas/replica_strategy.h"

namespace trainkit::detail {

class SingleDevice : public ReplicaStrategy {
 public:
  SingleDevice(std::shared_ptr<torch::nn::Module> module, at::Device device);

  int64_t replicas() const override { return 1; }
  int64_t world_replicas() const override { return 1; }
  at::Device device(int64_t replica = 0) const override;
  const std::shared_ptr<torch::nn::Module>& module(int64_t replica = 0) const override;
  ReplicaGroup& group() override { return group_; }
  void begin_step() override { state_.follow(); }
  int64_t trained_version() const override { return state_.version(); }
  void run(const Body& body, bool reduce_gradients, const OnSent& on_sent) override;
  void synchronize() override {}

 private:
  struct SingleReplicaGroup final : ReplicaGroup {
    int64_t size() const override { return 1; }
    void all_reduce(int64_t, at::Tensor&) override {}
    bool any(int64_t, bool value) override { return value; }
  };

  std::shared_ptr<torch::nn::Module> module_;
  ModelState state_;
  at::Device device_;
  SingleReplicaGroup group_;
};

}  // namespace trainkit::detail
