#include "distributed/replicas/distributed.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "distributed/group/process_group_impl.h"
#include "distributed/replicas/rank_shards.h"
#include "distributed/replicas/reducer_buckets.h"
#include "distributed/replicas/sparse_sums.h"
#include "distributed/shards/gradient_hook.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

std::string shape_text(const at::Tensor& tensor) {
  std::string text = std::string(c10::toString(tensor.scalar_type())) + " [";
  for (const int64_t size : tensor.sizes()) text += (text.back() == '[' ? "" : ", ") + std::to_string(size);
  return text + "]";
}

}  // namespace

void Distributed::Ranks::all_reduce(int64_t, at::Tensor& tensor) {
  throw_status(group_.all_reduce(tensor, "all_reduce inside the model"));
}

Distributed::Distributed(std::shared_ptr<torch::nn::Module> module, const DeviceReplicatorOptions& options)
    : process_group_(options.process_group),
      module_(std::move(module)),
      state_({module_}),
      known_modes_{state_.modes()},
      device_(*options.device),
      options_(options),
      group_(*process_group_),
      reduction_(*process_group_),
      graph_ranks_(*process_group_, reduction_) {
  std::vector<DigestField> fields;
  for (const auto& [name, tensor] : unique_parameters(*module_)) {
    fields.push_back({"parameter " + name, shape_text(tensor)});
  }
  for (const auto& [name, tensor] : sparse_parameters(*module_)) fields.push_back({"gradient of " + name, "sparse"});
  for (const auto& [name, tensor] : unique_buffers(*module_)) fields.push_back({"buffer " + name, shape_text(tensor)});
  fields.push_back({"gradient_compression", std::to_string(static_cast<int>(options.gradient_compression))});
  fields.push_back({"bucket_bytes", std::to_string(options.bucket_bytes)});
  fields.push_back({"first_bucket_bytes", std::to_string(options.first_bucket_bytes)});
  fields.push_back({"find_unused_parameters", options.find_unused_parameters ? "true" : "false"});
  constexpr const char* kShardings[] = {"none", "optimizer", "gradients"};
  fields.push_back({"shard", kShardings[static_cast<int>(options.sharding)]});
  for (DigestField& field : state_.fields()) fields.push_back(std::move(field));
  throw_status(process_group_->compare_digest(fields));
  reduction_.bind(*module_, group_);
  synchronize();
  create_buckets();
  phases_.on_change([this](bool is_new) {
    if (is_new) reduction_.release();
    if (!reduction_.begin_phase(phases_.current())) create_buckets();  // the first step of a phase, on all ranks
  });
}

/// Lets the gradients of the phase's trained parameters be reduced whole, unless they are divided.
void Distributed::create_buckets() {
  reduction_.use(nullptr);  // releases the memory of the buckets before
  if (options_.sharding != Sharding::kNone) return;
  auto sparse = phases_.of_phase(sparse_parameters(*module_)), dense = phases_.of_phase(state_.trained(0));
  std::erase_if(dense, [&](const auto& named) {
    return std::any_of(sparse.begin(), sparse.end(), [&](const auto& one) { return one.second.is_same(named.second); });
  });
  std::unique_ptr<GradientSums> sums;
  if (!dense.empty()) {
    sums = std::make_unique<ReducerBuckets>(process_group_->impl(), std::move(dense), options_, reduce_time_);
  }
  if (!sparse.empty()) {
    sums = std::make_unique<SparseSums>(*process_group_, std::move(sparse), std::move(sums), options_, reduce_time_);
  }
  reduction_.use(std::move(sums));
}

/// See Note [Replicas follow the first one].
void Distributed::follow_model() {
  constexpr size_t kMostModes = 64;
  const ModelState::Change change = state_.follow();
  if (change.parameter && shards_) throw_status(state_.sharding_error(*change.parameter));
  bool is_new = change.parameter.has_value();
  if (change.modes) {
    if (known_modes_.size() == kMostModes) known_modes_.clear();
    is_new |= known_modes_.insert(state_.modes()).second;
  }
  if (is_new) throw_status(process_group_->compare_digest(state_.fields()));
  if (!change.parameter) return;
  reduction_.release();
  create_buckets();
}

at::Device Distributed::device(int64_t replica) const {
  TORCH_CHECK_INDEX(replica == 0, "replica must be 0, got ", replica);
  return device_;
}

const std::shared_ptr<torch::nn::Module>& Distributed::module(int64_t replica) const {
  TORCH_CHECK_INDEX(replica == 0, "replica must be 0, got ", replica);
  return module_;
}

void Distributed::synchronize() {
  const c10::AutoGradMode no_grad(false);
  std::vector<at::Tensor> tensors;
  for (const auto& named : {unique_parameters(*module_), unique_buffers(*module_)}) {
    for (const auto& [name, tensor] : named) tensors.push_back(tensor.detach());
  }
  throw_status(process_group_->broadcast(tensors, 0, "broadcast of the weights"));
}

std::string Distributed::graph_obstacle() const {
  if (!device_.is_cuda()) return "the device is " + device_.str();
  if (options_.find_unused_parameters) return "find_unused_parameters reads from the device";
  return "";
}

void Distributed::use_current_streams() {
  for (const auto& [name, parameter] : state_.trained(0)) accumulate_on_current_stream(parameter);
}

void Distributed::begin_step() {
  follow_model();
  reduction_.begin_step();
  seed_.begin({{process_group_->rank(), device_}});
}

void Distributed::run(const Body& body, bool reduce_gradients, const OnSent& on_sent) {
  if (c10::GradMode::is_enabled()) follow_model();  // an evaluation may have another number of runs on each rank
  const int64_t rank = process_group_->rank();
  const ReplicaRandomGuard random(seed_.of(rank, seed_.next_run({{rank, device_}}, /*last=*/reduce_gradients)));
  TORCH_CHECK(options_.sharding == Sharding::kNone || shards_ || state_.trained(0).empty(),
              "run() of sharded replicas needs a TrainStep or Trainer, which divides the parameters first");
  phases_.list_inputs({module_}, state_.version());
  reduction_.run(body, /*is_last=*/reduce_gradients, on_sent,
                 [this](const at::Tensor& loss) { phases_.backward(0, loss); });
}

void Distributed::abandon_step() {
  reduction_.abandon();
  seed_.restart();
}

void Distributed::divide_parameters(const std::function<bool(const at::Tensor&)>& is_whole) {
  if (shards_ || options_.sharding == Sharding::kNone) return;
  follow_model();  // layers that were frozen since create()
  auto trained = state_.trained(0);
  if (trained.empty()) return;
  auto shards = std::make_unique<RankShards>(*process_group_, std::move(trained), is_whole, options_, reduce_time_);
  shards_ = &shards->shards();
  reduction_.use(std::move(shards));
}

}  // namespace trainkit::detail
