#include "distributed/replicas/replica_streams.h"

#include <ATen/ops/ones.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <exception>
#include <mutex>

#include "core/tensors/recorded.h"
#ifdef TRAINKIT_WITH_NCCL
#include <torch/csrc/cuda/nccl.h>
#endif

namespace trainkit::detail {
namespace {

c10::Stream current_stream(at::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

#ifdef TRAINKIT_WITH_NCCL
constexpr auto kSum = static_cast<int32_t>(torch::cuda::nccl::ncclRedOp::Sum);

torch::cuda::nccl::stream_list cuda_streams(const std::vector<c10::Stream>& streams) {
  torch::cuda::nccl::stream_list list;
  for (const c10::Stream stream : streams) list.emplace_back(at::cuda::CUDAStream(stream));
  return list;
}

/// The part of each replica in its own tensor.
std::vector<at::Tensor> own_parts(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t part = tensors[i].numel() / static_cast<int64_t>(tensors.size());
    parts.push_back(tensors[i].narrow(0, static_cast<int64_t>(i) * part, part));
  }
  return parts;
}
#endif

}  // namespace

#ifdef TRAINKIT_WITH_NCCL

ReplicaStreams::ReplicaStreams(const std::vector<at::Device>& devices) {
  std::vector<at::Tensor> ones;
  for (const at::Device device : devices) {
    streams_.push_back(
        c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, /*isHighPriority=*/true));
    ones.push_back(at::ones({1}, device));
  }
  ends_ = make_events();
  torch::cuda::nccl::all_reduce(ones, ones);  // creates the communicators; a grouped launch cannot
}

void ReplicaStreams::launch(const std::function<void()>& collectives) const {
  // All objects share communicators, whose launches must have one order on all devices, from whatever thread.
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  const ExchangeScope exchange;
  std::exception_ptr failed;
  {
    const torch::cuda::nccl::AutoNcclGroup one_launch;  // its destructor throws if the launch fails
    try {
      collectives();
    } catch (...) {
      failed = std::current_exception();
    }
  }
  if (failed) std::rethrow_exception(failed);
}

void ReplicaStreams::all_reduce(const std::vector<at::Tensor>& tensors) const {
  std::vector<at::Tensor> sums = tensors;
  torch::cuda::nccl::all_reduce(tensors, sums, kSum, cuda_streams(streams_));
}

void ReplicaStreams::reduce_scatter(const std::vector<at::Tensor>& tensors) const {
  std::vector<at::Tensor> parts = own_parts(tensors);
  torch::cuda::nccl::reduce_scatter(tensors, parts, kSum, cuda_streams(streams_));
}

void ReplicaStreams::all_gather(const std::vector<at::Tensor>& tensors) const {
  std::vector<at::Tensor> whole = tensors;
  torch::cuda::nccl::all_gather(own_parts(tensors), whole, cuda_streams(streams_));
}

#else

ReplicaStreams::ReplicaStreams(const std::vector<at::Device>&) {}
void ReplicaStreams::launch(const std::function<void()>&) const {}
void ReplicaStreams::all_reduce(const std::vector<at::Tensor>&) const {}
void ReplicaStreams::reduce_scatter(const std::vector<at::Tensor>&) const {}
void ReplicaStreams::all_gather(const std::vector<at::Tensor>&) const {}

#endif

void ReplicaStreams::check_available() const {
  TORCH_CHECK_VALUE(!streams_.empty(), "trainkit was built without NCCL, which training on several GPUs requires");
}

ReplicaEvents ReplicaStreams::make_events() const {
  ReplicaEvents events;
  for (const c10::Stream stream : streams_) events.emplace_back(stream.device_type());
  return events;
}

void ReplicaStreams::record(size_t replica, ReplicaEvents& events) const {
  events[replica].record(current_stream(streams_[replica].device()));
}

void ReplicaStreams::wait_for(ReplicaEvents& events) {
  for (size_t i = 0; i < streams_.size(); ++i) events[i].block(streams_[i]);
}

void ReplicaStreams::wait_for_devices() {
  for (size_t i = 0; i < streams_.size(); ++i) record(i, ends_);
  wait_for(ends_);
}

void ReplicaStreams::join() {
  record_launched(ends_);
  for (size_t i = 0; i < streams_.size(); ++i) block(i, ends_);
}

void ReplicaStreams::record_launched(ReplicaEvents& events) const {
  for (size_t i = 0; i < streams_.size(); ++i) events[i].record(streams_[i]);
}

void ReplicaStreams::block(size_t replica, ReplicaEvents& events) const {
  events[replica].block(current_stream(streams_[replica].device()));
}

}  // namespace trainkit::detail
