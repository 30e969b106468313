#pragma once
// One rank of several whose training state is divided, without the others: for plans of its memory.

#include "distributed/replicas/single_device.h"
#include "distributed/shards/parameter_shards.h"

namespace trainkit::detail {

/// Allocates what rank 0 of `ranks` does. Sends nothing, so the numbers are not those of a run.
class PlannedRank final : public SingleDevice {
 public:
  /// @param empty_cache is called where a run on a GPU returns the allocator's cached memory.
  PlannedRank(std::shared_ptr<torch::nn::Module> module, const DeviceReplicatorOptions& options, int64_t ranks,
              std::function<void()> empty_cache)
      : SingleDevice(std::move(module), *options.device),
        options_(options),
        ranks_(ranks),
        empty_cache_(std::move(empty_cache)) {}

  Sharding sharding() const override { return options_.sharding; }
  void divide_parameters(const std::function<bool(const at::Tensor&)>& is_whole) override;
  ParameterShards* shards(int64_t = 0) const override { return shards_.get(); }
  void run(const Body& body, bool reduce_gradients, const OnSent& on_sent) override;
  void abandon_step() override { shards_->reduction().release(); }

 private:
  DeviceReplicatorOptions options_;
  int64_t ranks_;
  std::function<void()> empty_cache_;
  std::unique_ptr<ParameterShards> shards_;
};

}  // namespace trainkit::detail
