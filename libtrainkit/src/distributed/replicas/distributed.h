#pragma once
// One process per device.

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "distributed/replicas/graph_ranks.h"
#include "distributed/replicas/model_state.h"
#include "distributed/replicas/rank_reduction.h"
#include "distributed/replicas/replica_strategy.h"
#include "distributed/replicas/replica_tools.h"
#include "distributed/shards/parameter_shards.h"

namespace trainkit::detail {

class Distributed final : public ReplicaStrategy {
 public:
  Distributed(std::shared_ptr<torch::nn::Module> module, const DeviceReplicatorOptions& options);

  int64_t replicas() const override { return 1; }
  int64_t world_replicas() const override { return process_group_->world_size(); }
  at::Device device(int64_t replica = 0) const override;
  const std::shared_ptr<torch::nn::Module>& module(int64_t replica = 0) const override;
  ProcessGroup* process_group() const override { return process_group_.get(); }
  ReplicaGroup& group() override { return group_; }
  Sharding sharding() const override { return options_.sharding; }
  void synchronize() override;
  void synchronize_buffers() override { reduction_.synchronize_buffers(); }

  void begin_step() override;
  void run(const Body& body, bool reduce_gradients, const OnSent& on_sent) override;
  void skip_reduction() override { reduction_.skip(); }
  void abandon_step() override;
  int64_t trained_version() const override { return state_.version(); }
  bool needs_all_gradients() const override { return !options_.find_unused_parameters; }

  void divide_parameters(const std::function<bool(const at::Tensor&)>& is_whole) override;
  ParameterShards* shards(int64_t = 0) const override { return shards_; }
  void gather_weights() override { shards_->gathering().run(); }
  void sum_over_shards(const std::vector<at::Tensor>& values) override { shards_->all_reduce(values.front()); }

  std::string graph_obstacle() const override;
  void use_current_streams() override;
  GraphRanks* graph_ranks() override { return &graph_ranks_; }

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

  void follow_model();
  void create_buckets();

  std::shared_ptr<ProcessGroup> process_group_;
  std::shared_ptr<torch::nn::Module> module_;
  ModelState state_;
  std::set<std::vector<char>> known_modes_;  // in which the ranks agree
  at::Device device_;
  DeviceReplicatorOptions options_;
  StepSeed seed_;
  Ranks group_;
  RankReduction reduction_;
  GraphRanks graph_ranks_;
  ParameterShards* shards_ = nullptr;  // of reduction_, with sharding after divide_parameters()
};

}  // namespace trainkit::detail
