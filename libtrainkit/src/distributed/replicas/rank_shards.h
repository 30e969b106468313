#pragma once
// Sums the gradients of ranks that divide the training state (Sharding).

#include <ATen/core/Tensor.h>

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/time_sum.h"
#include "distributed/replicas/rank_reduction.h"
#include "distributed/shards/parameter_shards.h"

namespace trainkit::detail {

class RankShards final : public GradientSums {
 public:
  using Parameters = std::vector<std::pair<std::string, at::Tensor>>;
  /// Divides `trained`, with names. Adds to `time` what backward does not hide. Keeps the references.
  RankShards(ProcessGroup& group, Parameters trained, const std::function<bool(const at::Tensor&)>& is_whole,
             const DeviceReplicatorOptions& options, TimeSum& time);

  ParameterShards& shards() { return shards_; }

  bool reduces_every_run() const override { return shards_.reduction().reduces_every_run(); }
  void begin() override;
  void run(const DeviceReplicator::Body& body, const Run& run) override;
  void complete(bool contribute, bool records_order) override;
  bool is_complete() const override { return !shards_.reduction().is_reducing(); }
  void abandon(bool /*reduced*/) override { shards_.reduction().release(); }

 private:
  ShardCollectives collectives(at::Device device);

  ProcessGroup& group_;
  Parameters trained_;
  TimeSum& time_;
  std::chrono::steady_clock::time_point started_;
  ParameterShards shards_;
};

}  // namespace trainkit::detail
