#include "distributed/replicas/replica_tools.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <absl/status/statusor.h>
#include <torch/nn/modules/embedding.h>

#include <mutex>
#include <unordered_set>

#include "distributed/batch_norm/batch_norm_hooks.h"
#include "distributed/group/rendezvous.h"
#include "trainkit/core/random.h"

namespace trainkit::detail {
namespace {

template <class Items>
std::vector<std::pair<std::string, at::Tensor>> unique(const Items& items) {
  std::vector<std::pair<std::string, at::Tensor>> result;
  std::unordered_set<const void*> seen;
  for (const auto& item : items) {
    if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second) {
      result.emplace_back(item.key(), item.value());
    }
  }
  return result;
}

}  // namespace

std::vector<std::pair<std::string, at::Tensor>> unique_parameters(const torch::nn::Module& module) {
  return unique(module.named_parameters());
}

std::vector<std::pair<std::string, at::Tensor>> unique_buffers(const torch::nn::Module& module) {
  return unique(module.named_buffers());
}

std::vector<at::Tensor> trained_parameters(const torch::nn::Module& module) {
  std::vector<at::Tensor> parameters;
  for (const auto& [name, parameter] : unique_parameters(module)) {
    if (parameter.requires_grad()) parameters.push_back(parameter);
  }
  return parameters;
}

std::vector<std::pair<std::string, at::Tensor>> sparse_parameters(const torch::nn::Module& module) {
  std::unordered_set<const void*> sparse;
  for (const auto& part : module.modules()) {
    if (const auto* table = part->as<torch::nn::EmbeddingImpl>(); table && table->options.sparse())
      sparse.insert(table->weight.unsafeGetTensorImpl());
    if (const auto* bag = part->as<torch::nn::EmbeddingBagImpl>(); bag && bag->options.sparse())
      sparse.insert(bag->weight.unsafeGetTensorImpl());
    const auto* own = dynamic_cast<const HasSparseGradients*>(part.get());
    if (!own) continue;
    for (const at::Tensor& parameter : own->sparse_parameters()) sparse.insert(parameter.unsafeGetTensorImpl());
  }
  auto parameters = unique_parameters(module);
  std::erase_if(parameters, [&](const auto& named) {
    return !named.second.requires_grad() || !sparse.contains(named.second.unsafeGetTensorImpl());
  });
  return parameters;
}

std::vector<at::Tensor> replica_buffers(const torch::nn::Module& module) {
  std::unordered_set<const void*> synchronised;
  for (const auto& part : module.modules()) {
    const auto* norm = part->as<SyncBatchNormImpl>();
    if (!norm || !norm->options.synchronize) continue;
    for (const at::Tensor& buffer : part->buffers()) synchronised.insert(buffer.unsafeGetTensorImpl());
  }
  std::vector<at::Tensor> buffers;
  for (const auto& [name, buffer] : unique_buffers(module)) {
    if (!synchronised.count(buffer.unsafeGetTensorImpl())) buffers.push_back(buffer);
  }
  return buffers;
}

torch::autograd::edge_list waiting_nodes(const torch::nn::Module& module) {
  torch::autograd::edge_list edges;
  for (const auto& part : module.modules()) {
    const auto* norm = part->as<SyncBatchNormImpl>();
    if (!norm || !norm->options.synchronize) continue;
    for (const auto& recorded : BatchNormHooks::nodes(*norm)) {
      if (auto node = recorded.lock()) edges.emplace_back(std::move(node), 0);
    }
  }
  return edges;
}

std::vector<at::Tensor> uncounted(const std::vector<at::Tensor>& buffers) {
  std::vector<at::Tensor> same;
  for (const at::Tensor& buffer : buffers) same.push_back(buffer.variable_data());
  return same;
}

bool bind_replica(torch::nn::Module& module, ReplicaGroup& group, int64_t replica) {
  bool any = false;
  for (const auto& part : module.modules()) {
    if (auto* norm = part->as<SyncBatchNormImpl>()) {
      BatchNormHooks::bind(*norm, group, replica);
      any |= norm->options.synchronize;
    }
  }
  return any;
}

std::vector<at::Tensor> tensors_of(const std::vector<std::pair<std::string, at::Tensor>>& named) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(named.size());
  for (const auto& [name, tensor] : named) tensors.push_back(tensor);
  return tensors;
}

void throw_replica_failed() {
  throw absl::BadStatusOrAccess(
      distributed_error("dist.replica", "", "another replica failed while this one waited for it in a collective"));
}

void throw_status(const absl::Status& status) {
  if (!status.ok()) throw absl::BadStatusOrAccess(status);
}

void StepSeed::begin(const Replicas& replicas) {
  at::Generator host = at::detail::getDefaultCPUGenerator();
  {
    const std::lock_guard lock(host.mutex());
    seed_ = at::check_generator<at::CPUGeneratorImpl>(host)->random64();
  }
  restart();
  for (const auto& [replica, device] : replicas) {
    if (device.is_cpu()) continue;
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    generator.set_current_seed(hash_key(seed_, replica));
  }
}

int64_t StepSeed::next_run(const Replicas& replicas, bool last) {
  if (!has_begun_) begin(replicas);
  has_begun_ = !last;
  return runs_++;
}

void StepSeed::restart() {
  runs_ = 0;
  has_begun_ = true;
}

uint64_t StepSeed::of(int64_t replica, int64_t run) const {
  return run == 0 ? hash_key(seed_, replica) : hash_key(seed_, replica, run);
}

}  // namespace trainkit::detail
